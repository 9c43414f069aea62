//! Code images: finds the kernels of a PTX text, a cubin or a fat binary. Code is not interpreted.

use crate::abi::{CUerror, In, Raw};
use crate::error::{INVALID_IMAGE, INVALID_PTX};

const ELF: [u8; 4] = *b"\x7fELF";
/// Magic number of a fat binary.
const FATBIN: u32 = 0xba55_ed50;
/// Magic number of the wrapper that a compiler puts around a fat binary.
const WRAPPER: u32 = 0x4662_43b1;

/// Maximum size in bytes of an image without a given length.
const LONGEST: usize = 256 << 20;

/// Contents of a module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) kernels: Vec<String>,
    /// Variables with their size in bytes; 0 if unknown.
    pub(crate) globals: Vec<(String, u64)>,
}

/// Parses the image at an address. Text ends with a zero; a cubin and a fat binary have their length in the
/// header.
pub(crate) fn at(address: Raw) -> Result<Image, CUerror> {
    let bytes: In<u8> = address.as_in();
    let word = |offset: usize| -> Result<u32, CUerror> {
        Raw(address.0.wrapping_byte_add(offset)).as_in::<u32>().get()
    };
    let first = [bytes.get()?];
    if first == [ELF[0]] && word(0)?.to_le_bytes() == ELF {
        return parse(&bytes.list(elf_length(address)?)?);
    }
    // Valid text is never shorter than four bytes: it has a version and a target.
    if first[0].is_ascii() && text_length(bytes, 4)? < 4 {
        return Err(INVALID_IMAGE);
    }
    match word(0)? {
        FATBIN => parse(&bytes.list(fatbin_length(address)?)?),
        WRAPPER => at(Raw(Raw(address.0.wrapping_byte_add(8))
            .as_in::<*mut std::ffi::c_void>()
            .get()?)),
        _ => parse(&bytes.list(text_length(bytes, LONGEST)?)?),
    }
}

/// Parses an image of known length.
pub(crate) fn parse(bytes: &[u8]) -> Result<Image, CUerror> {
    let mut image = Image::default();
    if bytes.starts_with(&ELF) {
        elf(bytes, &mut image).ok_or(INVALID_IMAGE)?;
    } else if bytes.starts_with(&FATBIN.to_le_bytes()) {
        fatbin(bytes, &mut image).ok_or(INVALID_IMAGE)?;
    } else {
        ptx(bytes, &mut image)?;
    }
    image.kernels.sort();
    image.kernels.dedup();
    Ok(image)
}

fn text_length(bytes: In<u8>, limit: usize) -> Result<usize, CUerror> {
    let start = bytes.address();
    for length in 0..limit {
        if Raw((start + length as u64) as *mut _).as_in::<u8>().get()? == 0 {
            return Ok(length);
        }
    }
    Ok(limit)
}

fn elf_length(address: Raw) -> Result<usize, CUerror> {
    let field = |offset: usize| Raw(address.0.wrapping_byte_add(offset));
    let sections = field(0x28).as_in::<u64>().get()?;
    let segments = field(0x20).as_in::<u64>().get()?;
    let [segment_size, segment_count] = field(0x36).as_in::<[u16; 2]>().get()?;
    let [section_size, section_count] = field(0x3a).as_in::<[u16; 2]>().get()?;
    let end = |at: u64, size: u16, count: u16| at.saturating_add(u64::from(size) * u64::from(count));
    let end = end(sections, section_size, section_count).max(end(segments, segment_size, segment_count));
    usize::try_from(end)
        .ok()
        .filter(|&length| length <= LONGEST)
        .ok_or(INVALID_IMAGE)
}

fn fatbin_length(address: Raw) -> Result<usize, CUerror> {
    let field = |offset: usize| Raw(address.0.wrapping_byte_add(offset));
    let header = u64::from(field(6).as_in::<u16>().get()?);
    let length = header.saturating_add(field(8).as_in::<u64>().get()?);
    usize::try_from(length)
        .ok()
        .filter(|&length| length <= LONGEST)
        .ok_or(INVALID_IMAGE)
}

/// Parses a fat binary: a header, then entries with header and contents. Compressed contents are skipped;
/// functions of such a module are found by name on request.
fn fatbin(bytes: &[u8], image: &mut Image) -> Option<()> {
    let mut at = usize::from(number::<2>(bytes, 6)?);
    while at + 16 <= bytes.len() {
        let header = usize::try_from(number::<4>(bytes, at + 4)?).ok()?;
        let length = usize::try_from(number::<8>(bytes, at + 8)?).ok()?;
        let contents = bytes.get(at + header..(at + header).checked_add(length)?)?;
        if let Ok(inner) = parse(contents) {
            image.kernels.extend(inner.kernels);
            image.globals.extend(inner.globals);
        }
        at += header.max(1) + length;
    }
    Some(())
}

/// Parses a cubin: kernels are the sections `.text.NAME`, variables the objects in the symbol table.
fn elf(bytes: &[u8], image: &mut Image) -> Option<()> {
    let sections = usize::try_from(number::<8>(bytes, 0x28)?).ok()?;
    let size = usize::from(number::<2>(bytes, 0x3a)?);
    let count = usize::from(number::<2>(bytes, 0x3c)?);
    let names = usize::from(number::<2>(bytes, 0x3e)?);
    let field = |section: usize, offset: usize| -> Option<usize> {
        usize::try_from(number::<8>(bytes, sections + section * size + offset)?).ok()
    };
    let strings = field(names, 0x18)?;
    for section in 0..count {
        let name = usize::try_from(number::<4>(bytes, sections + section * size)?).ok()?;
        let name = text(bytes, strings + name)?;
        if let Some(kernel) = name.strip_prefix(".text.") {
            image.kernels.push(kernel.to_owned());
        }
        let is_symbols = number::<4>(bytes, sections + section * size + 4)? == 2;
        if is_symbols {
            let link = usize::try_from(number::<4>(bytes, sections + section * size + 0x28)?).ok()?;
            symbols(
                bytes,
                field(section, 0x18)?,
                field(section, 0x20)?,
                field(link, 0x18)?,
                image,
            )?;
        }
    }
    Some(())
}

fn symbols(bytes: &[u8], start: usize, length: usize, strings: usize, image: &mut Image) -> Option<()> {
    const SYMBOL: usize = 24;
    const OBJECT: u8 = 1;
    for at in (start..start + length).step_by(SYMBOL) {
        let name = usize::try_from(number::<4>(bytes, at)?).ok()?;
        if bytes.get(at + 4)? & 0xf == OBJECT {
            image.globals.push((
                text(bytes, strings + name)?.to_owned(),
                number::<8>(bytes, at + 16)?,
            ));
        }
    }
    Some(())
}

/// Parses PTX: kernels follow `.entry`, variables precede a `[` or `;` in a line with `.global`.
fn ptx(bytes: &[u8], image: &mut Image) -> Result<(), CUerror> {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let text = std::str::from_utf8(&bytes[..end]).map_err(|_| INVALID_IMAGE)?;
    if !text.contains(".version") || !text.contains(".target") {
        return Err(if text.contains(".entry") {
            INVALID_PTX
        } else {
            INVALID_IMAGE
        });
    }
    let code = without_comments(text);
    for after in code.split(".entry").skip(1) {
        let name = after.trim_start();
        let length = name
            .find(|c: char| !(c.is_ascii_alphanumeric() || "_$".contains(c)))
            .unwrap_or(name.len());
        image.kernels.push(name[..length].to_owned());
    }
    for line in code
        .lines()
        .filter(|line| line.contains(".global") && line.contains(".b8"))
    {
        let Some((before, after)) = line.split_once(".b8 ") else {
            continue;
        };
        let _ = before;
        let name: String = after
            .trim_start()
            .chars()
            .take_while(|c| c.is_ascii_alphanumeric() || "_$".contains(*c))
            .collect();
        let size = after
            .split_once('[')
            .and_then(|(_, rest)| rest.split_once(']'))
            .and_then(|(n, _)| n.parse().ok());
        image.globals.push((name, size.unwrap_or(1)));
    }
    Ok(())
}

fn without_comments(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        let (before, comment) = rest.split_at(at);
        code.push_str(before);
        rest = if comment.starts_with("//") {
            comment.find('\n').map_or("", |end| &comment[end..])
        } else if comment.starts_with("/*") {
            comment.find("*/").map_or("", |end| &comment[end + 2..])
        } else {
            code.push('/');
            &comment[1..]
        };
    }
    code.push_str(rest);
    code
}

/// Returns the little-endian number of N bytes at an offset.
fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<<[u8; N] as Number>::Value>
where
    [u8; N]: Number,
{
    bytes
        .get(at..at.checked_add(N)?)?
        .try_into()
        .ok()
        .map(<[u8; N]>::value)
}

trait Number {
    type Value;
    fn value(self) -> Self::Value;
}

impl Number for [u8; 2] {
    type Value = u16;
    fn value(self) -> u16 {
        u16::from_le_bytes(self)
    }
}
impl Number for [u8; 4] {
    type Value = u32;
    fn value(self) -> u32 {
        u32::from_le_bytes(self)
    }
}
impl Number for [u8; 8] {
    type Value = u64;
    fn value(self) -> u64 {
        u64::from_le_bytes(self)
    }
}

fn text(bytes: &[u8], at: usize) -> Option<&str> {
    let rest = bytes.get(at..)?;
    let end = rest.iter().position(|&byte| byte == 0)?;
    std::str::from_utf8(&rest[..end]).ok()
}
