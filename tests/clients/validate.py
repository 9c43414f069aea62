"""Validates JSON on standard input against a schema.

usage: validate.py SCHEMA

Properties that the schema does not describe are errors here, although the schema permits them: later versions may
add some, and have to describe them. Prints the errors and exits with 1 if there are any.
"""

import json
import sys

from jsonschema import Draft202012Validator


def strict(schema):
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: strict(value) for key, value in schema.items()}
    if schema.get("type") == "object" and "properties" in schema:
        schema.setdefault("additionalProperties", False)
    return schema


with open(sys.argv[1]) as file:
    schema = json.load(file)
Draft202012Validator.check_schema(schema)
validator = Draft202012Validator(strict(schema))
errors = list(validator.iter_errors(json.load(sys.stdin)))
for error in errors:
    print(f"{error.json_path}: {error.message}")
sys.exit(1 if errors else 0)
