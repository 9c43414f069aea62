//! Writes a pattern into a block and verifies it later.
//!
//! Uses kernels where they can reach the memory: the fill kernel writes, the checksum kernel reads all of it,
//! and a copy reads the first words. The checksum is stored in the block's own last eight bytes, so that
//! verifying takes no memory. Arrays are written and read by copies, host memory by the CPU.

use anyhow::{Result, ensure};

use crate::block::{Allocator, Block};
use crate::driver::CUdeviceptr;

/// Bytes at the start of a window that are read back and compared word by word.
const HEAD: usize = 4096;
/// Maximum bytes that one kernel fills: the pattern's words do not wrap within it.
const WINDOW: usize = 1 << 30;
/// Bytes of the checksum at a window's end.
const SUM: usize = 8;

/// A block with its pattern.
#[derive(Debug)]
pub(crate) struct Touched {
    pub block: Block,
    value: u32,
    /// Number of bytes at each end of the block that have the pattern.
    reach: usize,
}

impl Touched {
    /// Writes the pattern numbered `number` into the block: all of it, or `limit` bytes shared by its two
    /// ends.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn write(allocator: &Allocator<'_>, block: Block, number: u32, limit: usize) -> Result<Self> {
        let reach = if limit >= block.bytes {
            block.bytes
        } else {
            limit / 2
        };
        let mut touched = Self {
            block,
            value: number.wrapping_mul(0x9e37_79b1) >> 2,
            reach,
        };
        if let Some(pointer) = touched.block.pointer() {
            allocator.stream.synchronize()?;
            for (at, bytes) in touched.windows() {
                let words = words(bytes);
                allocator
                    .gpu
                    .fill(allocator.stream.raw, pointer + at, words, touched.value)?;
            }
            allocator.stream.synchronize()?;
        } else {
            let (value, reach) = (touched.value, touched.reach);
            if let Some(host) = touched.block.host() {
                pattern(host.get_mut(..reach).unwrap_or_default(), value);
            } else {
                let mut host = vec![0; reach];
                pattern(&mut host, value);
                allocator.copy_array(&touched.block, &mut host, true)?;
            }
        }
        Ok(touched)
    }

    /// Verifies the pattern.
    ///
    /// # Errors
    /// The driver's, or where and how the memory differs from what was written.
    pub(crate) fn verify(&mut self, allocator: &Allocator<'_>) -> Result<()> {
        if let Some(pointer) = self.block.pointer() {
            for (at, bytes) in self.windows() {
                self.verify_window(allocator, pointer + at, bytes)?;
            }
            return Ok(());
        }
        let (value, reach) = (self.value, self.reach);
        if let Some(host) = self.block.host() {
            return compare(host.get(..reach).unwrap_or_default(), value);
        }
        let mut host = vec![0; reach];
        allocator.copy_array(&self.block, &mut host, false)?;
        let copied = self.block.whole_rows(reach);
        compare(host.get(..copied).unwrap_or_default(), value)
    }

    fn verify_window(&self, allocator: &Allocator<'_>, pointer: CUdeviceptr, bytes: usize) -> Result<()> {
        let gpu = allocator.gpu;
        let words = words(bytes);
        let out = pointer + words * 4;
        gpu.write(out, &[0; SUM])?;
        // A copy from pageable memory may return before its data has arrived.
        gpu.synchronize()?;
        gpu.checksum(allocator.stream.raw, pointer, words, out)?;
        allocator.stream.synchronize()?;
        let mut sum = [0; SUM];
        gpu.read(out, &mut sum)?;
        let (sum, want) = (u64::from_le_bytes(sum), checksum(self.value, words));
        ensure!(
            sum == want,
            "checksum {sum:#x} where {want:#x} was written, {words} words at {pointer:#x}"
        );
        let mut head = vec![0; HEAD.min(bytes - SUM)];
        gpu.read(pointer, &mut head)?;
        compare(&head, self.value)
    }

    /// Returns (offset, bytes) of each window: multiples of eight bytes, large enough for a word and the
    /// checksum.
    fn windows(&self) -> Vec<(u64, usize)> {
        let whole = self.block.bytes;
        let tail = if self.reach == whole {
            whole
        } else {
            (whole - self.reach).next_multiple_of(8)
        };
        let mut windows = Vec::new();
        for (start, end) in [(0, self.reach), (tail, whole)] {
            for at in (start..end).step_by(WINDOW) {
                let bytes = (end - at).min(WINDOW) & !7;
                if bytes >= 2 * SUM {
                    windows.push((at as u64, bytes));
                }
            }
        }
        windows
    }
}

/// Returns the number of pattern words in a window.
fn words(bytes: usize) -> u64 {
    ((bytes - SUM) / 4) as u64
}

/// Writes the fill kernel's pattern by the CPU.
fn pattern(bytes: &mut [u8], value: u32) {
    let mut word = value;
    for target in bytes.chunks_exact_mut(4) {
        target.copy_from_slice(&word.to_le_bytes());
        word = word.wrapping_add(1);
    }
}

fn compare(bytes: &[u8], value: u32) -> Result<()> {
    let mut want = value;
    for (at, word) in bytes.chunks_exact(4).enumerate() {
        ensure!(
            word == want.to_le_bytes(),
            "word {at} is {word:02x?} where {want:#x} was written"
        );
        want = want.wrapping_add(1);
    }
    Ok(())
}

/// Returns the checksum kernel's result for the fill kernel's pattern: the sum of (value + i)(i + 1), in
/// closed form.
#[allow(
    clippy::cast_possible_truncation,
    reason = "the kernel's arithmetic wraps at 64 bits too"
)]
fn checksum(value: u32, words: u64) -> u64 {
    let n = u128::from(words);
    let sum = n * (n + 1) / 2;
    let squares = n * (n + 1) * (2 * n + 1) / 6;
    // (value + i)(i + 1) = (value - 1)(i + 1) + (i + 1)^2, in wrapping arithmetic.
    let total = squares.wrapping_add(u128::from(value).wrapping_sub(1).wrapping_mul(sum));
    // The lower 64 bits.
    (total & u128::from(u64::MAX)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_is_what_the_kernel_adds_up() {
        for (value, words) in [(0, 0), (0, 1), (7, 1000), (0x3fff_ffff, 12_345)] {
            let mut sum = 0_u64;
            for i in 0..words {
                let word = value + u32::try_from(i).unwrap();
                sum = sum.wrapping_add(u64::from(word).wrapping_mul(i + 1));
            }
            assert_eq!(checksum(value, words), sum, "{value} {words}");
        }
    }

    #[test]
    fn changed_word_is_found() {
        let mut bytes = [0; 64];
        pattern(&mut bytes, 9);
        compare(&bytes, 9).unwrap();
        bytes[40] ^= 1;
        assert!(
            compare(&bytes, 9)
                .unwrap_err()
                .to_string()
                .starts_with("word 10 ")
        );
    }
}
