//! Compaction and expansion of elements by AVX-512 instructions, several times as fast as one by one.

use super::{BLOCK, PLANE};

/// The number of elements of the narrowest type in a vector.
const LANES: usize = 64;

/// A block of elements, padded so that a vector may start at the last one.
pub(super) type Padded<T> = [T; BLOCK + LANES];

/// Element types that AVX-512 has compaction and expansion instructions for.
pub(super) trait Vectors: Sized {
    /// Stores the elements whose bits are set, one after the other. The elements of `found` after them are unspecified.
    /// Returns `false` and does nothing if the processor lacks the instructions.
    fn compact(elements: &[Self; BLOCK], bitmap: &[u8; PLANE], found: &mut Padded<Self>) -> bool;

    /// Puts the elements of `found` where bits are set, and 0 elsewhere. Returns `false` as above.
    fn expand(found: &Padded<Self>, bitmap: &[u8; PLANE], elements: &mut [Self; BLOCK]) -> bool;
}

macro_rules! vectors {
    ($($type:ident $mask:ident $compress:ident $expand:ident)*) => { $(
        impl Vectors for $type {
            #[inline(always)]
            fn compact(elements: &[Self; BLOCK], bitmap: &[u8; PLANE], found: &mut Padded<Self>) -> bool {
                #[cfg(target_arch = "x86_64")]
                if is_supported() {
                    // SAFETY: the processor has the features it is compiled for.
                    unsafe { $type::compact(elements, bitmap, found) };
                    return true;
                }
                let _ = (elements, bitmap, found);
                false
            }

            #[inline(always)]
            fn expand(found: &Padded<Self>, bitmap: &[u8; PLANE], elements: &mut [Self; BLOCK]) -> bool {
                #[cfg(target_arch = "x86_64")]
                if is_supported() {
                    // SAFETY: as above.
                    unsafe { $type::expand(found, bitmap, elements) };
                    return true;
                }
                let _ = (found, bitmap, elements);
                false
            }
        }

        #[cfg(target_arch = "x86_64")]
        mod $type {
            use std::arch::x86_64::{$compress, $expand, _mm512_loadu_si512, _mm512_storeu_si512};

            use super::{BLOCK, PLANE, Padded};

            const LANES: usize = $mask::BITS as usize;

            /// Iterates over a bitmap's bits, one vector's at a time.
            #[inline(always)]
            fn masks(bitmap: &[u8; PLANE]) -> impl Iterator<Item = $mask> {
                bitmap.as_chunks().0.iter().map(|bytes| $mask::from_le_bytes(*bytes))
            }

            #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
            pub(super) fn compact(elements: &[$type; BLOCK], bitmap: &[u8; PLANE], found: &mut Padded<$type>) {
                let mut count = 0;
                for (some, mask) in elements.as_chunks::<LANES>().0.iter().zip(masks(bitmap)) {
                    let to: &mut [$type] = &mut found[count..count + LANES];
                    // SAFETY: both are as long as a vector.
                    unsafe {
                        let some = _mm512_loadu_si512(some.as_ptr().cast());
                        _mm512_storeu_si512(to.as_mut_ptr().cast(), $compress(mask, some));
                    }
                    count += mask.count_ones() as usize;
                }
            }

            #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
            pub(super) fn expand(found: &Padded<$type>, bitmap: &[u8; PLANE], elements: &mut [$type; BLOCK]) {
                let mut count = 0;
                for (some, mask) in elements.as_chunks_mut::<LANES>().0.iter_mut().zip(masks(bitmap)) {
                    let from: &[$type] = &found[count..count + LANES];
                    // SAFETY: both are as long as a vector.
                    unsafe {
                        let from = _mm512_loadu_si512(from.as_ptr().cast());
                        _mm512_storeu_si512(some.as_mut_ptr().cast(), $expand(mask, from));
                    }
                    count += mask.count_ones() as usize;
                }
            }
        }
    )* };
}
vectors! {
    u8 u64 _mm512_maskz_compress_epi8 _mm512_maskz_expand_epi8
    u16 u32 _mm512_maskz_compress_epi16 _mm512_maskz_expand_epi16
    u32 u16 _mm512_maskz_compress_epi32 _mm512_maskz_expand_epi32
    u64 u8 _mm512_maskz_compress_epi64 _mm512_maskz_expand_epi64
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn is_supported() -> bool {
    use std::arch::is_x86_feature_detected as has;
    has!("avx512f") && has!("avx512bw") && has!("avx512vbmi2") && has!("popcnt")
}
