//! Kind of a program, from the headers of its file.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use gcgroupfs_model::diagnosis::Program;

/// Longest table of program headers that is read, bytes.
const MAX_HEADERS: usize = 64 << 10;

/// Program header that names the dynamic loader.
const PT_INTERP: u32 = 3;

/// Returns the kind of a program; [`Program::Unknown`] of files that are damaged or not in the ELF format.
pub(crate) fn kind(file: &File) -> Program {
    look(file).unwrap_or_default()
}

fn look(file: &File) -> Option<Program> {
    let mut header = [0; 64];
    file.read_exact_at(&mut header, 0).ok()?;
    if !header.starts_with(b"\x7fELF") {
        return None;
    }
    let half = |at: usize| Some(u16::from_le_bytes(*header.get(at..)?.first_chunk()?));
    let own = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    // 64 bits, little-endian, and this machine's processor.
    if header.get(4..6)? != [2, 1] || half(18)? != own {
        return Some(Program::Foreign);
    }
    // e_phoff, e_phentsize and e_phnum.
    let at = u64::from_le_bytes(*header.get(32..)?.first_chunk()?);
    let (size, count) = (usize::from(half(54)?), usize::from(half(56)?));
    let length = size.checked_mul(count).filter(|length| *length <= MAX_HEADERS)?;
    let mut headers = vec![0; length];
    file.read_exact_at(&mut headers, at).ok()?;
    let mut kinds = headers
        .chunks_exact(size.max(1))
        .filter_map(|entry| entry.first_chunk());
    Some(match kinds.any(|kind| u32::from_le_bytes(*kind) == PT_INTERP) {
        true => Program::Dynamic,
        false => Program::Static,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write as _;

    use super::*;

    /// Returns a file with program headers of these types.
    pub(crate) fn elf(types: &[u32]) -> Vec<u8> {
        let mut head = vec![0; 64];
        head[..6].copy_from_slice(b"\x7fELF\x02\x01");
        head[18] = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
        head[32] = 64;
        head[54] = 56;
        head[56] = u8::try_from(types.len()).unwrap();
        for kind in types {
            head.extend(kind.to_le_bytes());
            head.extend([0; 52]);
        }
        head
    }

    fn kind_of(bytes: &[u8]) -> Program {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        kind(&file)
    }

    #[test]
    fn static_program_has_no_loader() {
        assert_eq!(kind_of(&elf(&[6, PT_INTERP, 1])), Program::Dynamic);
        assert_eq!(kind_of(&elf(&[6, 1, 2])), Program::Static);
        assert_eq!(kind_of(&elf(&[])), Program::Static);
    }

    #[test]
    fn damaged_program_file_is_of_unknown_kind() {
        let whole = elf(&[6, 1]);
        for end in 0..whole.len() {
            assert_eq!(kind_of(&whole[..end]), Program::Unknown, "{end}");
        }
        assert_eq!(kind_of(b"#!/bin/sh\n"), Program::Unknown);
        let (mut far, mut many) = (elf(&[1]), elf(&[1]));
        far[32..40].fill(0xff);
        many[56..58].fill(0xff);
        for damaged in [far, many] {
            assert_eq!(kind_of(&damaged), Program::Unknown);
        }
    }

    #[test]
    fn program_for_another_machine_is_foreign() {
        for at in [4, 5, 18] {
            let mut other = elf(&[PT_INTERP]);
            other[at] ^= 3;
            assert_eq!(kind_of(&other), Program::Foreign, "{at}");
        }
    }
}
