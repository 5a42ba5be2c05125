//! Waits for the device: operations do none, except where the size or the values of a result must be found first.

use std::collections::{BTreeMap, BTreeSet};

use tenure_tensor::TensorError;

use crate::common::{in_use_alone, simulated};
use crate::harness::{Family, cuda};

/// The cases that wait, and how often.
const WAITS: &[(&str, &str, u64)] = &[
    // Selection by masks waits until the number of true elements is known, once for each mask.
    ("index", "mask", 1),
    ("index", "mask_and_index", 1),
    ("index", "mask_of_all", 1),
    ("index", "mask_of_last", 1),
    ("index", "masked_select", 1),
    ("index", "nonzero", 1),
    ("index", "put_masked", 1),
    ("integers", "chosen", 1),
    ("integers", "shaped", 1),
    // Distinct elements are counted in the same way.
    ("search", "unique", 1),
    ("search", "unique_floats", 1),
    ("search", "unique_bool", 1),
    ("search", "unique_only", 1),
    ("search", "unique_rows", 1),
    ("search", "unique_columns", 1),
    ("search", "unique_slices", 1),
    ("search", "unique_of_vector", 1),
    // Matrices are computed on the host: each waits for its copy, and so does the gradient.
    ("linalg", "cholesky", 8),
    ("linalg", "cholesky_upper", 8),
    ("linalg", "det", 6),
    ("linalg", "det_of_none", 1),
    ("linalg", "det_of_number", 6),
    ("linalg", "eigh", 3),
    ("linalg", "eigh_of_lower", 3),
    ("linalg", "eigh_of_upper", 3),
    ("linalg", "eigh_upper", 3),
    ("linalg", "eigvalsh", 3),
    ("linalg", "eigvalsh_of_upper", 2),
    ("linalg", "inv", 3),
    ("linalg", "inverse", 3),
    ("linalg", "logdet", 6),
    ("linalg", "logdet_negative", 3),
    ("linalg", "matrix_exp", 1),
    ("linalg", "matrix_exp_small", 1),
    ("linalg", "matrix_power_inverse", 3),
    ("linalg", "matrix_rank", 2),
    ("linalg", "matrix_rank_limited", 3),
    ("linalg", "matrix_rank_symmetric", 2),
    ("linalg", "pinv", 4),
    ("linalg", "pinv_limited", 5),
    ("linalg", "pinv_symmetric", 3),
    ("linalg", "pinv_wide", 4),
    ("linalg", "pinverse", 4),
    ("linalg", "qr", 6),
    ("linalg", "qr_complete", 6),
    ("linalg", "qr_complete_tall", 3),
    ("linalg", "qr_r", 2),
    ("linalg", "qr_tall", 6),
    ("linalg", "qr_wide", 6),
    ("linalg", "slogdet", 6),
    ("linalg", "slogdet_singular", 3),
    ("linalg", "solve", 6),
    ("linalg", "solve_broadcast", 6),
    ("linalg", "solve_right", 6),
    ("linalg", "solve_triangular", 6),
    ("linalg", "solve_triangular_lower", 6),
    ("linalg", "solve_triangular_right", 6),
    ("linalg", "solve_triangular_unit", 6),
    ("linalg", "solve_triangular_unit_right", 6),
    ("linalg", "solve_vector", 6),
    ("linalg", "solve_vectors", 6),
    ("linalg", "svd", 4),
    ("linalg", "svd_tall", 4),
    ("linalg", "svd_wide", 4),
    ("linalg", "svdvals", 4),
    ("linalg", "svdvals_only", 2),
    // These cases wait because they make an index or mask on the CPU themselves.
    ("gather", "index_copy", 2),
    ("attention", "one_seen", 1),
    ("attention", "seen", 1),
    ("gather", "scatter", 2),
    ("index", "put", 2),
    ("special", "cross_entropy", 1),
];

#[test]
fn only_operations_that_must_wait_for_the_device() {
    let Some(driver) = (cuda(), simulated()).1 else { return };
    let _alone = in_use_alone();
    let mut found: BTreeMap<(&str, &str), BTreeSet<u64>> = BTreeMap::new();
    let mut unknown: BTreeSet<(&str, &str)> = BTreeSet::new();
    for cases in crate::FAMILIES {
        let name = cases.family;
        let family = Family::open_on(name, cuda());
        for (case, function) in cases.cases {
            // Sizes and layouts make no difference.
            for sample in family.samples.iter().filter(|sample| sample.case == *case && sample.variant == "contiguous")
            {
                match family.waits(sample, *function, driver) {
                    Ok(0) => {}
                    // Missing kernels are reported by another test.
                    Err(TensorError::NoKernel { .. }) => drop(unknown.insert((name, *case))),
                    Ok(waits) => drop(found.entry((name, case)).or_default().insert(waits)),
                    Err(error) => panic!("{name}: {case} ({}): {error}", sample.dtype),
                }
            }
        }
    }
    let known = WAITS.iter().filter(|(family, case, _)| !unknown.contains(&(*family, *case)));
    let expected: BTreeMap<(&str, &str), BTreeSet<u64>> =
        known.map(|(family, case, waits)| ((*family, *case), BTreeSet::from([*waits]))).collect();
    found.retain(|case, _| !unknown.contains(case));
    assert_eq!(found, expected);
}
