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
    for (name, cases) in crate::FAMILIES {
        let family = Family::open_on(name, cuda());
        for (case, function) in *cases {
            // Sizes and layouts make no difference.
            for sample in family.samples.iter().filter(|sample| sample.case == *case && sample.variant == "contiguous")
            {
                match family.waits(sample, *function, driver) {
                    Ok(0) => {}
                    // Missing kernels are reported by another test.
                    Err(TensorError::NoKernel { .. }) => drop(unknown.insert((*name, *case))),
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
