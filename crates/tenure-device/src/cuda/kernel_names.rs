//! Names of kernels as their sources have them.

use std::collections::HashMap;

use cpp_demangle::{DemangleOptions, Symbol};

/// The names of kernels in C++, each demangled once.
#[derive(Default)]
pub(crate) struct KernelNames(HashMap<Vec<u8>, String>);

impl KernelNames {
    /// Returns the name that a kernel has in its source, given its symbol.
    pub(crate) fn demangled(&mut self, symbol: &[u8]) -> &str {
        if !self.0.contains_key(symbol) {
            self.0.insert(symbol.to_vec(), demangle(symbol));
        }
        &self.0[symbol]
    }
}

/// Returns the name of a symbol. A symbol that is not in the form of C++ compilers is a name itself.
fn demangle(symbol: &[u8]) -> String {
    let name = Symbol::new(symbol).ok().and_then(|parsed| parsed.demangle_with_options(&DemangleOptions::new()).ok());
    name.unwrap_or_else(|| String::from_utf8_lossy(symbol).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_of_templates_become_names_with_their_arguments() {
        let mut names = KernelNames::default();
        let name = names.demangled(b"_ZN2at6native18elementwise_kernelILi128ELi4EfEEviPT1_").to_owned();
        assert_eq!(name, "void at::native::elementwise_kernel<128, 4, float>(int, float*)");
        assert_eq!(names.demangled(b"_ZN2at6native18elementwise_kernelILi128ELi4EfEEviPT1_"), name);
        assert_eq!(names.0.len(), 1);
    }

    #[test]
    fn names_that_are_not_mangled_stay_as_they_are() {
        let mut names = KernelNames::default();
        for name in ["exp", "sm90_xmma_gemm_f32f32_tf32f32", "ampere_sgemm_128x64_nn", "", "_Z", "_Zwrong"] {
            assert_eq!(names.demangled(name.as_bytes()), name);
        }
        assert_eq!(names.demangled(b"a\xff"), "a\u{FFFD}");
    }
}
