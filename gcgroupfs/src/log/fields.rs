//! Text and fields of an event. Fields in lower case belong to the text; those in capitals repeat parts of
//! it for the journal, and the text leaves them out.

use std::fmt::{self, Debug, Write};

use tracing::field::{Field, Visit};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;

/// Returns whether the field is for the journal alone.
pub(super) fn is_for_journal(field: &Field) -> bool {
    let mut bytes = field.name().bytes();
    bytes.all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
}

/// Writes an event's text: the message, then fields as `name=value`.
#[derive(Debug, Default)]
pub(super) struct Text(pub(super) String);

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.0.insert_str(0, value);
        } else {
            self.record_debug(field, &value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a String cannot fail.
        if field.name() == "message" {
            self.0.insert_str(0, &format!("{value:?}"));
        } else if !is_for_journal(field) {
            let _ = write!(self.0, " {}={value:?}", field.name());
        }
    }
}

/// Formats the text of events on standard error.
#[derive(Debug)]
pub(super) struct TextFields;

impl FormatFields<'_> for TextFields {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'_>, fields: R) -> fmt::Result {
        let mut text = Text::default();
        fields.record(&mut text);
        writer.write_str(text.0.trim_start())
    }
}
