//! Loops for the widest vectors that the processor has.

/// Calls `body`, compiled for the widest vectors that the processor has, chosen when it runs. `body`, and what it calls in
/// its loops, must be `#[inline(always)]`, or it is compiled for none.
///
/// ```
/// let mut squares = [1.0_f32, 2.0, 3.0];
/// tenure_tensor::vectorized(
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
pub fn vectorized<R>(body: impl FnMut() -> R) -> R {
    let body = Wide(body);
    // Without AVX-512, which optimised programs use, a third less is to be compiled.
    #[cfg(all(debug_assertions, target_arch = "x86_64"))]
    return match pulp::x86::V3::try_new() {
        Some(simd) => pulp::Simd::vectorize(simd, body),
        None => pulp::WithSimd::with_simd(body, pulp::Scalar),
    };
    #[cfg(not(all(debug_assertions, target_arch = "x86_64")))]
    pulp::Arch::new().dispatch(body)
}

/// A closure called by reference: what the compiler puts around one that is called by value is inlined as it likes.
struct Wide<F>(F);

impl<R, F: FnMut() -> R> pulp::WithSimd for Wide<F> {
    type Output = R;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(mut self, _: S) -> R {
        (self.0)()
    }
}
