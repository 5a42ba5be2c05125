//! Tests of leases: single rules, and a property test against a model that knows the true state of every process.

use proptest::prelude::*;

use super::*;

const GRACE_MS: u64 = 100;
const READ: AccessMode = AccessMode::Read;
const WRITE: AccessMode = AccessMode::ReadWrite;

fn pool(offset: u64, bytes: u64) -> Extent {
    Extent::Pool { offset, bytes }
}

fn reclaim(leases: &mut Leases, now_ms: u64, listed: Option<bool>) -> Vec<LeaseId> {
    leases.reclaim(now_ms, |_| listed).0.into_iter().map(|(id, _)| id).collect()
}

#[test]
fn any_number_of_readers_share_a_range_and_a_writer_has_it_alone() {
    let mut leases = Leases::new(GRACE_MS);
    let a = leases.connect(Some(1));
    let b = leases.connect(Some(2));
    let first = leases.grant(a, pool(0, 10), READ, 0).unwrap();
    let second = leases.grant(b, pool(5, 10), READ, 0).unwrap();
    assert!(matches!(leases.grant(b, pool(9, 1), WRITE, 0), Err(DaemonRefusal::Leased { pid: Some(1), .. })));
    leases.release(a, first).unwrap();
    leases.release(b, second).unwrap();
    leases.grant(b, pool(5, 10), WRITE, 0).unwrap();
    assert!(matches!(leases.grant(a, pool(14, 1), READ, 0), Err(DaemonRefusal::Leased { pid: Some(2), .. })));
    leases.grant(a, pool(15, 1), WRITE, 0).unwrap();
    leases.grant(a, pool(0, 5), WRITE, 0).unwrap();
}

#[test]
fn a_waiting_client_gets_a_range_before_later_ones() {
    let mut leases = Leases::new(GRACE_MS);
    let [a, b, c] = [1, 2, 3].map(|pid| leases.connect(Some(pid)));
    let held = leases.grant(a, pool(0, 10), WRITE, 0).unwrap();
    for waiting in [b, c] {
        leases.grant(waiting, pool(0, 10), WRITE, 0).unwrap_err();
        leases.queue(waiting, pool(0, 10), WRITE, 0);
    }
    leases.release(a, held).unwrap();
    assert!(matches!(leases.grant(a, pool(5, 10), READ, 1), Err(DaemonRefusal::Leased { pid: Some(2), .. })));
    leases.grant(a, pool(10, 10), WRITE, 1).unwrap();
    assert!(leases.grant(c, pool(0, 10), WRITE, 1).is_err());
    let second = leases.grant(b, pool(0, 10), WRITE, 1).unwrap();
    leases.release(b, second).unwrap();
    assert!(matches!(leases.grant(b, pool(0, 10), WRITE, 2), Err(DaemonRefusal::Leased { pid: Some(3), .. })));
    leases.grant(c, pool(0, 10), WRITE, 2).unwrap();
}

#[test]
fn a_client_that_does_not_ask_again_loses_its_place_in_the_queue() {
    for gives_up in [0, 1, 2] {
        let mut leases = Leases::new(GRACE_MS);
        let [a, b] = [1, 2].map(|pid| leases.connect(Some(pid)));
        leases.queue(b, pool(0, 10), WRITE, 0);
        assert!(leases.grant(a, pool(0, 10), WRITE, QUEUE_TIMEOUT_MS - 1).is_err());
        match gives_up {
            0 => {}
            1 => leases.leave_queue(b, pool(0, 10)),
            _ => drop(leases.disconnect(b, 0)),
        }
        leases.grant(a, pool(0, 10), WRITE, if gives_up == 0 { QUEUE_TIMEOUT_MS } else { 1 }).unwrap();
    }
}

#[test]
fn a_range_is_written_while_its_writer_is_connected() {
    let mut leases = Leases::new(GRACE_MS);
    let reader = leases.connect(Some(1));
    let writer = leases.connect(Some(2));
    leases.grant(reader, pool(0, 10), READ, 0).unwrap();
    leases.grant(writer, pool(10, 10), WRITE, 0).unwrap();
    assert_eq!([0, 9, 10, 20].map(|offset| leases.is_written(offset, 2)), [false, true, true, false]);
    leases.disconnect(writer, 0);
    assert!(!leases.is_written(10, 10));
}

#[test]
fn only_its_holder_gives_a_lease_back_and_once() {
    let mut leases = Leases::new(GRACE_MS);
    let a = leases.connect(Some(1));
    let b = leases.connect(Some(2));
    let lease = leases.grant(a, pool(0, 10), WRITE, 0).unwrap();
    assert_eq!(leases.release(b, lease), Err(DaemonRefusal::UnknownLease(lease)));
    assert_eq!(leases.release(a, lease), Ok(pool(0, 10)));
    assert_eq!(leases.release(a, lease), Err(DaemonRefusal::UnknownLease(lease)));
}

#[test]
fn a_range_of_the_dead_is_free_when_the_driver_no_longer_lists_its_process() {
    let mut leases = Leases::new(GRACE_MS);
    let dead = leases.connect(Some(1));
    let lease = leases.grant(dead, pool(0, 10), WRITE, 0).unwrap();
    assert!(!leases.disconnect(dead, 0));
    assert_eq!(reclaim(&mut leases, 1000, Some(false)), [], "it runs");
    assert!(!leases.exit(dead, 1000));
    assert_eq!(reclaim(&mut leases, 9999, Some(true)), [], "its context is there");
    let other = leases.connect(Some(2));
    assert!(leases.grant(other, pool(0, 10), READ, 9999).is_err());
    assert_eq!(reclaim(&mut leases, 9999, Some(false)), [lease]);
    leases.grant(other, pool(0, 10), WRITE, 9999).unwrap();
}

#[test]
fn without_a_list_a_range_of_the_dead_is_free_after_the_grace_period() {
    let mut leases = Leases::new(GRACE_MS);
    let dead = leases.connect(Some(1));
    let lease = leases.grant(dead, pool(0, 10), WRITE, 0).unwrap();
    leases.exit(dead, 500);
    assert_eq!(reclaim(&mut leases, 500 + GRACE_MS - 1, None), []);
    assert_eq!(reclaim(&mut leases, 500 + GRACE_MS, None), [lease]);
}

#[test]
fn a_grace_period_may_be_for_ever() {
    let mut leases = Leases::new(u64::MAX);
    let dead = leases.connect(Some(1));
    leases.grant(dead, pool(0, 10), WRITE, 0).unwrap();
    leases.exit(dead, 500);
    assert_eq!(reclaim(&mut leases, u64::MAX - 1, None), []);
}

#[test]
fn a_chunk_of_the_dead_is_given_back_at_once() {
    let mut leases = Leases::new(GRACE_MS);
    let dead = leases.connect(Some(1));
    let lease = leases.grant(dead, Extent::Chunk { bytes: 7 }, WRITE, 0).unwrap();
    leases.disconnect(dead, 0);
    assert_eq!(reclaim(&mut leases, 9999, Some(true)), []);
    assert_eq!(leases.chunk_bytes(), 7);
    leases.exit(dead, 0);
    assert_eq!(reclaim(&mut leases, 0, Some(true)), [lease]);
    assert_eq!(leases.chunk_bytes(), 0);
}

#[test]
fn a_process_out_of_sight_has_the_grace_period_after_its_connection() {
    let mut leases = Leases::new(GRACE_MS);
    let hidden = leases.connect(None);
    let chunk = leases.grant(hidden, Extent::Chunk { bytes: 7 }, WRITE, 0).unwrap();
    let range = leases.grant(hidden, pool(0, 10), READ, 0).unwrap();
    leases.disconnect(hidden, 1000);
    assert!(leases.needs_reclaim());
    assert_eq!(reclaim(&mut leases, 1000 + GRACE_MS - 1, Some(false)), []);
    assert_eq!(reclaim(&mut leases, 1000 + GRACE_MS, Some(true)), [chunk, range]);
    assert!(!leases.needs_reclaim());
}

#[test]
fn a_process_out_of_sight_does_not_write_the_pool() {
    let mut leases = Leases::new(GRACE_MS);
    let hidden = leases.connect(None);
    assert_eq!(leases.grant(hidden, pool(0, 10), WRITE, 0), Err(DaemonRefusal::OutOfSight));
    leases.grant(hidden, pool(0, 10), READ, 0).unwrap();
    leases.grant(hidden, Extent::Chunk { bytes: 7 }, WRITE, 0).unwrap();
}

#[test]
fn holdings_sum_up_the_leases_of_a_connection_by_kind() {
    let mut leases = Leases::new(GRACE_MS);
    let a = leases.connect(Some(1));
    let b = leases.connect(Some(2));
    for (offset, now_ms) in [(0, 10), (10, 20)] {
        leases.grant(a, pool(offset, 10), WRITE, now_ms).unwrap();
    }
    leases.grant(b, Extent::Chunk { bytes: 7 }, WRITE, 30).unwrap();
    leases.disconnect(b, 40);
    let held = Holding {
        pid: Some(1),
        kind: LeaseKind::Pool,
        access: WRITE,
        state: LeaseState::Held,
        leases: 2,
        bytes: 20,
        oldest_ms: 40,
    };
    let orphaned = Holding {
        pid: Some(2),
        kind: LeaseKind::Chunk,
        state: LeaseState::Orphaned,
        leases: 1,
        bytes: 7,
        oldest_ms: 20,
        ..held
    };
    assert_eq!(leases.holdings(50), [held, orphaned]);
}

/// An event that happens to leases. Numbers choose among the objects that exist.
#[derive(Clone, Debug)]
enum Step {
    Connect { visible: bool },
    GrantPool { holder: usize, offset: u64, bytes: u64, write: bool },
    GrantChunk { holder: usize },
    Release { lease: usize },
    Disconnect { holder: usize },
    Exit { holder: usize },
    LeaveTheList { holder: usize },
    Pass { ms: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let which = || 0..64usize;
    prop_oneof![
        any::<bool>().prop_map(|visible| Step::Connect { visible }),
        (which(), 0..16u64, 1..8u64, any::<bool>()).prop_map(|(holder, offset, bytes, write)| Step::GrantPool {
            holder,
            offset,
            bytes,
            write
        }),
        which().prop_map(|holder| Step::GrantChunk { holder }),
        which().prop_map(|lease| Step::Release { lease }),
        which().prop_map(|holder| Step::Disconnect { holder }),
        which().prop_map(|holder| Step::Exit { holder }),
        which().prop_map(|holder| Step::LeaveTheList { holder }),
        (1..GRACE_MS).prop_map(|ms| Step::Pass { ms }),
    ]
}

/// A process with one connection, and everything that has really happened to it.
#[derive(Clone, Copy)]
struct Process {
    id: HolderId,
    visible: bool,
    closed_ms: Option<u64>,
    exited_ms: Option<u64>,
    listed: bool,
}

/// A lease that was granted and has not ended.
struct Live {
    id: LeaseId,
    process: usize,
    extent: Extent,
    access: AccessMode,
}

#[derive(Default)]
struct Model {
    processes: Vec<Process>,
    live: Vec<Live>,
    now_ms: u64,
}

impl Model {
    /// Returns whether work of a process may still touch leased memory. `tells`: whether the driver lists processes.
    fn may_touch(&self, process: &Process, extent: Extent, tells: bool) -> bool {
        let in_grace = |since_ms: Option<u64>| since_ms.is_none_or(|since_ms| self.now_ms < since_ms + GRACE_MS);
        match (process.visible, extent) {
            (false, _) => in_grace(process.closed_ms),
            (true, Extent::Chunk { .. }) => process.exited_ms.is_none(),
            (true, Extent::Pool { .. }) => {
                process.exited_ms.is_none() || if tells { process.listed } else { in_grace(process.exited_ms) }
            }
        }
    }

    fn conflicts(&self, extent: Extent, access: AccessMode) -> bool {
        let range = |extent| match extent {
            Extent::Pool { offset, bytes } => offset..offset + bytes,
            Extent::Chunk { .. } => 0..0,
        };
        let wanted = range(extent);
        self.live.iter().any(|lease| {
            let held = range(lease.extent);
            wanted.clone().any(|byte| held.contains(&byte)) && (access == WRITE || lease.access == WRITE)
        })
    }
}

proptest! {
    /// Checks that a writer excludes all others, that nothing is reclaimed while work may touch it, and that everything
    /// is reclaimed as soon as none can.
    #[test]
    fn leases_agree_with_the_model(steps in prop::collection::vec(step(), 1..120), tells: bool) {
        let mut leases = Leases::new(GRACE_MS);
        let mut model = Model::default();
        for step in steps {
            let pick = |among: usize, count: usize| (count > 0).then(|| among % count);
            let count = model.processes.len();
            match step {
                Step::Connect { visible } => {
                    let id = leases.connect(visible.then_some(count as u32));
                    model.processes.push(Process { id, visible, closed_ms: None, exited_ms: None, listed: true });
                }
                Step::GrantPool { holder, .. } | Step::GrantChunk { holder } => {
                    let Some(process) = pick(holder, count) else { continue };
                    if model.processes[process].closed_ms.is_some() {
                        continue;
                    }
                    let (extent, access) = match step {
                        Step::GrantPool { offset, bytes, write, .. } => {
                            (pool(offset, bytes), if write { WRITE } else { READ })
                        }
                        _ => (Extent::Chunk { bytes: 1 }, WRITE),
                    };
                    let granted = leases.grant(model.processes[process].id, extent, access, model.now_ms);
                    let hidden = !model.processes[process].visible;
                    let forbidden = hidden && access == WRITE && matches!(extent, Extent::Pool { .. });
                    prop_assert_eq!(granted.is_err(), forbidden || model.conflicts(extent, access));
                    if let Ok(id) = granted {
                        model.live.push(Live { id, process, extent, access });
                    }
                }
                Step::Release { lease } => {
                    let Some(lease) = pick(lease, model.live.len()) else { continue };
                    if model.processes[model.live[lease].process].closed_ms.is_some() {
                        continue;
                    }
                    let lease = model.live.swap_remove(lease);
                    prop_assert_eq!(leases.release(model.processes[lease.process].id, lease.id), Ok(lease.extent));
                }
                Step::Disconnect { holder } => {
                    let Some(process) = pick(holder, count).map(|index| &mut model.processes[index]) else { continue };
                    if process.closed_ms.is_none() {
                        process.closed_ms = Some(model.now_ms);
                        leases.disconnect(process.id, model.now_ms);
                    }
                }
                Step::Exit { holder } => {
                    let Some(process) = pick(holder, count).map(|index| &mut model.processes[index]) else { continue };
                    if process.visible && process.exited_ms.is_none() {
                        process.closed_ms = process.closed_ms.or(Some(model.now_ms));
                        process.exited_ms = Some(model.now_ms);
                        leases.exit(process.id, model.now_ms);
                    }
                }
                Step::LeaveTheList { holder } => {
                    let Some(process) = pick(holder, count).map(|index| &mut model.processes[index]) else { continue };
                    process.listed &= process.exited_ms.is_none();
                }
                Step::Pass { ms } => model.now_ms += ms,
            }
            let (reclaimed, _) = leases.reclaim(model.now_ms, |pid| tells.then(|| model.processes[pid as usize].listed));
            let over: Vec<_> = model
                .live
                .iter()
                .filter(|lease| !model.may_touch(&model.processes[lease.process], lease.extent, tells))
                .map(|lease| lease.id)
                .collect();
            let mut reclaimed: Vec<_> = reclaimed.into_iter().map(|(id, _)| id).collect();
            reclaimed.sort();
            model.live.retain(|lease| !over.contains(&lease.id));
            let mut over = over;
            over.sort();
            prop_assert_eq!(reclaimed, over);
            prop_assert_eq!(leases.leases.len(), model.live.len());
        }
    }
}
