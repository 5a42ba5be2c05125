//! Takes any text as a mapping: a parsed mapping has a tier for every key, and its written form parses to the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tenure_plan::Mapping;

fuzz_target!(|text: &str| {
    match Mapping::from_json(text) {
        Ok(mapping) => {
            assert!(
                mapping.places().all(|(key, tier)| tier < mapping.tiers().len() && mapping.place(key) == Some(tier))
            );
            let places = mapping.places().map(|(key, tier)| (key.to_owned(), tier)).collect();
            let again = Mapping::new(mapping.program(), mapping.tiers().to_vec(), places);
            assert_eq!(again.expect("it was valid"), mapping);
        }
        Err(error) => assert_eq!(error.to_string().lines().count(), 1),
    }
});
