//! Tests of policies as files.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::ops::ControlFlow;
use std::time::Duration;

use proptest::prelude::*;
use tenure_agent::{Marl, Policy};
use tenure_plan::Planner;
use tenure_plan::planner::{Objective, PlannerOptions};
use tenure_plan::problem::generate::Family;

const TRAINED: &[u8] = include_bytes!("../src/policy.safetensors");

fn refusal(bytes: &[u8]) -> String {
    let message = Policy::from_bytes(bytes).err().expect("no policy").to_string();
    assert_eq!(message.lines().count(), 1, "{message}");
    message
}

#[test]
fn a_policy_that_was_written_plans_as_before() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.safetensors");
    let problem = Family::UNet.contended(3).unwrap().told;
    let options =
        PlannerOptions { objective: Objective::Makespan, time_limit: Duration::MAX, evaluations: Some(3), seed: 1 };
    Policy::new(7).unwrap().write(&path).unwrap();
    let policies = [Policy::read(&path), Policy::new(7).map_err(Into::into), Policy::trained()];
    let plans = policies.map(|policy| {
        Marl::new(policy.unwrap()).plan(&problem, &options, &mut |_| ControlFlow::Continue(())).unwrap().plan
    });
    assert_eq!(plans[0], plans[1]);
    assert_ne!(plans[0], plans[2]);
}

#[test]
fn an_invalid_policy_is_refused() {
    assert!(refusal(b"").contains("invalid policy"));
    assert!(refusal(&TRAINED[..TRAINED.len() - 4]).contains("invalid policy"));
    let at = TRAINED.windows(8).position(|bytes| bytes == b"policy 1").unwrap();
    let mut later = TRAINED.to_vec();
    later[at + 7] = b'2';
    assert!(refusal(&later).contains("train it again"));
    let mut renamed = TRAINED.to_vec();
    let at = renamed.windows(8).position(|bytes| bytes == b"prices.0").unwrap();
    renamed[at] = b'P';
    assert!(refusal(&renamed).contains("missing: prices.0"));
    let mut endless = TRAINED.to_vec();
    let last = endless.len() - 4;
    endless[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    assert!(refusal(&endless).contains("a NaN or an infinity"));
    let missing = Policy::read("/nowhere/policy.safetensors").err().unwrap().to_string();
    assert!(missing.starts_with("/nowhere/policy.safetensors: "), "{missing}");
}

#[test]
fn a_policy_that_git_lfs_did_not_fetch_is_a_pointer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.safetensors");
    fs::write(&path, "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n").unwrap();
    let message = Policy::read(&path).err().unwrap().to_string();
    assert!(message.contains("policy.safetensors: this is a git-lfs pointer"), "{message}");
}

#[test]
fn a_policy_is_small() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.safetensors");
    Policy::zero().unwrap().write(&path).unwrap();
    assert!(fs::metadata(path).unwrap().len() < 1 << 20);
}

proptest! {
    #[test]
    fn any_bytes_are_a_policy_or_an_error(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut bytes = TRAINED.to_vec();
        // Mostly changes the header, where it matters.
        for (at, byte) in &changes {
            let at = at.index(2048.min(bytes.len()));
            bytes[at] = *byte;
        }
        _ = Policy::from_bytes(&bytes);
    }
}
