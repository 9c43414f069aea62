//! What NVML tells a governed process of a device's memory. A program that does not use CUDA, `nvidia-smi` for one,
//! sees the card.

use crate::cuda::{CUresult, CUuuid, nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t};
use crate::device;
use crate::driver;
use crate::interpose::Next;
use crate::memory::report::{Bytes, Room};
use crate::place::rewrite;
use crate::process;

/// `nvmlDeviceGetMemoryInfo`.
pub(crate) fn info(of: nvmlDevice_t, memory: *mut nvmlMemory_t, next: Next<'_>) -> CUresult {
    next()?;
    if let Some(room) = room(of) {
        rewrite(memory, |told| {
            let total = told.total.at_most(room.total);
            let free = told.free.at_most(room.free).min(total);
            nvmlMemory_t {
                total,
                free,
                used: total - free,
            }
        });
    }
    Ok(())
}

/// `nvmlDeviceGetMemoryInfo_v2`: used, free and reserved make the total.
pub(crate) fn info_v2(of: nvmlDevice_t, memory: *mut nvmlMemory_v2_t, next: Next<'_>) -> CUresult {
    next()?;
    if let Some(room) = room(of) {
        rewrite(memory, |told| {
            let total = told.total.at_most(room.total);
            let reserved = told.reserved.min(total);
            let free = told.free.at_most(room.free).min(total - reserved);
            nvmlMemory_v2_t {
                total,
                reserved,
                free,
                used: total - reserved - free,
                ..told
            }
        });
    }
    Ok(())
}

/// What limits leave of that device; `None` without a limit, or where the device cannot be told.
fn room(of: nvmlDevice_t) -> Option<Room> {
    let process = process::get()?;
    let mut text = [0; 96];
    driver::nvmlDeviceGetUUID(of, &mut text, 96).ok()?;
    let index = device::index_of(process.control(), device::uuid_words(uuid(&text)?));
    let room = Room::on(process, index);
    (room.total != gcgroup_abi::NO_LIMIT).then_some(room)
}

/// The sixteen bytes of `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`, or of `MIG-…`.
fn uuid(text: &[u8]) -> Option<CUuuid> {
    let text = text
        .strip_prefix(b"GPU-")
        .or_else(|| text.strip_prefix(b"MIG-"))?;
    let digits = text
        .iter()
        .take_while(|byte| **byte != 0)
        .filter(|byte| **byte != b'-');
    let mut values = digits.map(|byte| char::from(*byte).to_digit(16));
    let mut bytes = [0; 16];
    for byte in &mut bytes {
        let (high, low) = (values.next()??, values.next()??);
        *byte = u8::try_from(high << 4 | low).ok()?;
    }
    values.next().is_none().then_some(CUuuid { bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvmls_text_and_the_drivers_bytes_are_one_uuid() {
        let text = b"GPU-01020304-0506-0708-090a-0b0c0d0e0fff\0\0\0";
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 255];
        assert_eq!(uuid(text), Some(CUuuid { bytes }));
        for wrong in [
            &b"GPU-01020304\0"[..],
            b"",
            b"01020304-0506-0708-090a-0b0c0d0e0fff",
            b"GPU-0102030g-0506-0708-090a-0b0c0d0e0fff",
            b"GPU-01020304-0506-0708-090a-0b0c0d0e0fff0",
        ] {
            assert_eq!(uuid(wrong), None);
        }
    }
}
