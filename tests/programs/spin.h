/* PTX kernel gcgroup_spin(microseconds), which runs for this wall time. */
#pragma once

static const char ptx[] =
    ".version 7.8\n.target sm_75\n.address_size 64\n"
    ".visible .entry gcgroup_spin(.param .u64 microseconds)\n"
    "{\n"
    ".reg .pred %p;\n.reg .b64 %now, %end, %length;\n"
    "ld.param.u64 %length, [microseconds];\n"
    "mul.lo.u64 %length, %length, 1000;\n"
    "mov.u64 %end, %globaltimer;\n"
    "add.u64 %end, %end, %length;\n"
    "again:\n"
    "mov.u64 %now, %globaltimer;\n"
    "setp.lt.u64 %p, %now, %end;\n"
    "@%p bra again;\n"
    "ret;\n"
    "}\n";
