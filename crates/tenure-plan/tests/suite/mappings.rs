//! Tests of mappings as files, and of mappings made of plans.

use std::collections::BTreeMap;
use std::fs;

use proptest::prelude::*;
use tenure_plan::plan::{PlanAction, PlanStep};
use tenure_plan::{Mapping, Problem, Rule};

const EXAMPLE: &str = include_str!("../../../../docs/reference/problem-format.md");

/// Returns the first example of a document.
fn example(document: &str) -> &str {
    document.split("```json\n").nth(1).unwrap().split("```").next().unwrap()
}

#[test]
fn the_documented_example_is_a_mapping() {
    let mapping = Mapping::from_json(example(include_str!("../../../../docs/reference/mapping-format.md"))).unwrap();
    assert_eq!((mapping.program(), mapping.tiers()), ("small", &["DRAM".to_owned(), "PM".to_owned()][..]));
    let key = "encoder.0.intermediate/linear/out#0";
    assert_eq!((mapping.place(key), mapping.place("another")), (Some(1), None));
}

#[test]
fn a_mapping_is_made_of_a_problem_and_a_plan_by_key() {
    let problem = Problem::from_json(example(EXAMPLE)).unwrap();
    let plan = Rule::WeightsFirst.place(&problem, 70_000_000).plan();
    let mapping = Mapping::of_plan(&problem, &plan).unwrap();
    assert_eq!(mapping.places().collect::<Vec<_>>(), [("hidden", 1), ("weight", 0)]);
}

#[test]
fn a_plan_that_a_mapping_cannot_say_is_refused() {
    let problem = Problem::from_json(example(EXAMPLE)).unwrap();
    let mut plan = Rule::WeightsFirst.place(&problem, 70_000_000).plan();
    plan.steps.push(PlanStep { tensor: 1, kernel: 0, action: PlanAction::Move { to: 0 } });
    let error = Mapping::of_plan(&problem, &plan).unwrap_err().to_string();
    assert!(error.contains("\"hidden\" does not stay"), "{error}");
    plan.places.pop();
    let error = Mapping::of_plan(&problem, &plan).unwrap_err().to_string();
    assert!(error.contains("places for 1 tensors, and the problem has 2"), "{error}");
}

#[test]
fn an_invalid_mapping_is_refused_in_one_line() {
    for (text, expected) in [
        ("", "not a mapping"),
        ("[]", "not a mapping"),
        (r#"{"format": "tenure-problem", "version": 1}"#, "its format is \"tenure-problem\""),
        (r#"{"format": "tenure-mapping", "version": 2}"#, "version 2"),
        (r#"{"format": "tenure-mapping", "version": 1, "tiers": ["a"]}"#, "missing field `places`"),
        (r#"{"format": "tenure-mapping", "version": 1, "tiers": [], "places": {}}"#, "at least one tier"),
        (r#"{"format": "tenure-mapping", "version": 1, "tiers": ["a", "a"], "places": {}}"#, "a name of its own"),
        (
            r#"{"format": "tenure-mapping", "version": 1, "tiers": ["a"], "places": {"x": 1}}"#,
            "\"x\" is mapped to tier 1",
        ),
        (r#"{"format": "tenure-mapping", "version": 1, "tiers": ["a"], "places": {"x": -1}}"#, "invalid value"),
        (
            r#"{"format": "tenure-mapping", "version": 1, "tiers": ["a"], "places": {"x": 0, "x": 0}}"#,
            "\"x\" has two places",
        ),
        (r#"{"format": "tenure-mapping", "version": 1, "tiers": ["a"], "places": {}, "x\ny": 1}"#, "unknown field"),
    ] {
        let error = Mapping::from_json(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn an_error_names_the_file_and_a_failed_write_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mapping.json");
    let error = Mapping::read(&path).unwrap_err().to_string();
    assert!(error.starts_with(&path.display().to_string()), "{error}");

    let mapping = Mapping::new("small", vec!["DRAM".into()], BTreeMap::new()).unwrap();
    let missing = folder.path().join("none").join("mapping.json");
    assert!(mapping.write(&missing).unwrap_err().to_string().contains("none"));
    // A folder cannot be replaced by a file.
    fs::create_dir(&path).unwrap();
    mapping.write(&path).unwrap_err();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

proptest! {
    #[test]
    fn hostile_text_is_a_mapping_or_an_error_in_one_line(
        at in any::<prop::sample::Index>(),
        put in "[\\PC\n]{0,8}",
        cut in 0_usize..30,
    ) {
        let text: Vec<char> = example(include_str!("../../../../docs/reference/mapping-format.md")).chars().collect();
        let at = at.index(text.len());
        let rest = &text[text.len().min(at + cut)..];
        let text: String = text[..at].iter().copied().chain(put.chars()).chain(rest.iter().copied()).collect();
        match Mapping::from_json(&text) {
            Ok(mapping) => prop_assert!(mapping.places().all(|(_, tier)| tier < mapping.tiers().len())),
            Err(error) => prop_assert_eq!(error.to_string().lines().count(), 1),
        }
    }

    #[test]
    fn a_mapping_reads_as_it_was_written(
        places in prop::collection::btree_map(".{0,20}", 0_usize..3, 0..20),
        program in ".{0,20}",
    ) {
        let tiers = vec!["DRAM".to_owned(), "NUMA 1".to_owned(), "PM".to_owned()];
        let mapping = Mapping::new(program, tiers, places).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mapping.json");
        mapping.write(&path).unwrap();
        prop_assert_eq!(Mapping::read(&path).unwrap(), mapping);
    }
}
