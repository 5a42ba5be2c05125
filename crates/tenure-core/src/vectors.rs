//! Loops for the widest vectors that the processor has.

/// Calls `body`, compiled for the widest vectors that the processor has, which is found out at run time. `body`, and
/// the functions that it calls in its loops, must be `#[inline(always)]`, or they are not compiled for these vectors.
///
/// ```
/// let mut squares = [1.0_f32, 2.0, 3.0];
/// tenure_core::vectorized(
///     #[inline(always)]
///     || {
///         for x in &mut squares {
///             *x *= *x;
///         }
///     },
/// );
/// assert_eq!(squares, [1.0, 4.0, 9.0]);
/// ```
#[inline(always)]
pub fn vectorized<R>(mut body: impl FnMut() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    match x86::Vectors::of_this_processor() {
        // SAFETY: the processor has these features.
        #[cfg(not(debug_assertions))]
        x86::Vectors::Avx512 => return unsafe { x86::avx512(&mut body) },
        // SAFETY: the processor has these features.
        x86::Vectors::Avx2 => return unsafe { x86::avx2(&mut body) },
        x86::Vectors::Sse2 => {}
    }
    body()
}

/// The versions of a body for each vector width. They take the body by reference: if it were taken by value, the
/// compiler would inline the surrounding code as it likes.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::sync::LazyLock;

    #[derive(Clone, Copy)]
    pub(super) enum Vectors {
        /// Left out of debug builds, which have a third less to compile without it.
        #[cfg(not(debug_assertions))]
        Avx512,
        Avx2,
        Sse2,
    }

    impl Vectors {
        #[inline]
        pub(super) fn of_this_processor() -> Self {
            static FOUND: LazyLock<Vectors> = LazyLock::new(|| {
                macro_rules! has {
                    ($($feature:tt)*) => { $(is_x86_feature_detected!($feature))&&* };
                }
                let has_avx2 = has!("avx2" "fma" "bmi1" "bmi2" "lzcnt" "popcnt");
                #[cfg(not(debug_assertions))]
                if has_avx2 && has!("avx512f" "avx512bw" "avx512cd" "avx512dq" "avx512vl") {
                    return Vectors::Avx512;
                }
                if has_avx2 { Vectors::Avx2 } else { Vectors::Sse2 }
            });
            *FOUND
        }
    }

    #[cfg(not(debug_assertions))]
    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    pub(super) fn avx512<R>(body: &mut impl FnMut() -> R) -> R {
        body()
    }

    #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    pub(super) fn avx2<R>(body: &mut impl FnMut() -> R) -> R {
        body()
    }
}
