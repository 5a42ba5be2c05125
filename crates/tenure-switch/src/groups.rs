//! Into which groups a model's layers are divided, of which each is copied at once and waited for at once.
//!
//! Few groups cost little but the first layer waits for much; many cost a copy and a wait each. PipeSwitch (OSDI'20, section
//! 4.2) searches all divisions and leaves out what cannot be better. Here the search is exact in milliseconds: what comes after
//! a boundary depends on nothing but how many groups there were and when computing them ended, so that of all divisions up
//! to a layer, those with more groups that end no earlier are forgotten.

/// Layers that run one after the other, as measured on a device: weights, and how long what uses them takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layer {
    /// Bytes that are copied for it.
    pub bytes: u64,
    /// From its first kernel to that of the next layer, in µs.
    pub compute_us: f64,
    /// Which block of the model it is in, such as a layer of a transformer: numbers that only grow.
    pub block: u32,
}

/// What a division costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Of copies to the device.
    pub bytes_per_us: f64,
    /// What a copy takes whatever its size, in µs.
    pub copy_us: f64,
    /// What it takes to wait for a group that is there, in µs.
    pub wait_us: f64,
}

/// How layers are divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grouping {
    /// So that the last layer ends as early as can be.
    #[default]
    Searched,
    /// Each layer alone.
    PerLayer,
    /// Each block of the model.
    PerBlock,
    /// All at once: nothing is computed while weights are copied.
    Whole,
}

/// A division of layers.
#[derive(Clone, Debug, PartialEq)]
pub struct Groups {
    /// The layer behind each group's last.
    pub ends: Vec<usize>,
    /// From the first copy's begin to the last kernel's end, by the costs that it was made for, in µs.
    pub predicted_us: f64,
}

impl Grouping {
    /// Divides layers.
    pub fn divide(self, layers: &[Layer], costs: &Costs) -> Groups {
        let count = layers.len();
        let ends: Vec<usize> = match self {
            Self::Searched => return search(layers, costs),
            Self::PerLayer => (1..=count).collect(),
            Self::PerBlock => {
                let is_end = |end: &usize| *end == count || layers[*end].block != layers[end - 1].block;
                (1..=count).filter(is_end).collect()
            }
            Self::Whole => (count > 0).then_some(count).into_iter().collect(),
        };
        Groups { predicted_us: predict(layers, costs, &ends), ends }
    }
}

/// How long a cold start takes, from the first copy's begin to the last kernel's end, in µs. Groups are copied one after the
/// other; each is computed when it is there and the one before is done.
pub fn predict(layers: &[Layer], costs: &Costs, ends: &[usize]) -> f64 {
    let (mut begin, mut copied_us, mut computed_us) = (0, 0.0, 0.0_f64);
    for &end in ends {
        let group = &layers[begin..end];
        let bytes: u64 = group.iter().map(|layer| layer.bytes).sum();
        copied_us += costs.copy_us + bytes as f64 / costs.bytes_per_us;
        computed_us = computed_us.max(copied_us) + costs.wait_us;
        computed_us += group.iter().map(|layer| layer.compute_us).sum::<f64>();
        begin = end;
    }
    computed_us
}

/// A way to divide the layers before a boundary.
struct Division {
    groups: usize,
    computed_us: f64,
    /// The boundary before, and which of its divisions.
    before: (usize, usize),
}

fn search(layers: &[Layer], costs: &Costs) -> Groups {
    let count = layers.len();
    let sums = |of: fn(&Layer) -> f64| {
        let running = layers.iter().scan(0.0, move |sum, layer| {
            *sum += of(layer);
            Some(*sum)
        });
        std::iter::once(0.0).chain(running).collect::<Vec<f64>>()
    };
    let (bytes, compute_us) = (sums(|layer| layer.bytes as f64), sums(|layer| layer.compute_us));
    let copied_us = |boundary: usize, groups| bytes[boundary] / costs.bytes_per_us + groups as f64 * costs.copy_us;
    let fixed =
        [Grouping::Whole, Grouping::PerBlock, Grouping::PerLayer].map(|grouping| grouping.divide(layers, costs));
    let best = fixed.into_iter().min_by(|a, b| a.predicted_us.total_cmp(&b.predicted_us));
    let mut best = best.expect("there are three");
    // Of each boundary, by the number of groups; each next one ends earlier.
    let mut divisions: Vec<Vec<Division>> = (0..=count).map(|_| Vec::new()).collect();
    divisions[0].push(Division { groups: 0, computed_us: 0.0, before: (0, 0) });
    for begin in 0..count {
        let (known, later) = divisions.split_at_mut(begin + 1);
        for (index, division) in known[begin].iter().enumerate() {
            let groups = division.groups + 1;
            for end in begin + 1..=count {
                let ready_us = division.computed_us.max(copied_us(end, groups)) + costs.wait_us;
                // What is computed after the copy takes at least so long, and longer the more is in the group.
                if ready_us + compute_us[count] - compute_us[begin] >= best.predicted_us {
                    break;
                }
                let computed_us = ready_us + compute_us[end] - compute_us[begin];
                insert(&mut later[end - begin - 1], Division { groups, computed_us, before: (begin, index) });
            }
        }
        // Only the last boundary's divisions are whole.
        if let Some(last) = divisions[count].last().filter(|last| last.computed_us < best.predicted_us) {
            best.predicted_us = last.computed_us;
        }
    }
    let Some(index) = divisions[count].iter().position(|last| last.computed_us <= best.predicted_us) else {
        return best;
    };
    let (mut ends, mut at) = (Vec::new(), (count, index));
    while at.0 > 0 {
        ends.push(at.0);
        at = divisions[at.0][at.1].before;
    }
    ends.reverse();
    Groups { predicted_us: predict(layers, costs, &ends), ends }
}

/// Adds a division to those of its boundary, unless one of them is as good in everything, and takes out those that it is as
/// good as.
fn insert(divisions: &mut Vec<Division>, new: Division) {
    let at = divisions.partition_point(|known| known.groups < new.groups);
    let is_better = |known: &Division| known.groups <= new.groups && known.computed_us <= new.computed_us;
    if at.checked_sub(1).is_some_and(|before| is_better(&divisions[before])) || divisions.get(at).is_some_and(is_better)
    {
        return;
    }
    let worse = divisions[at..].iter().take_while(|known| known.computed_us >= new.computed_us).count();
    divisions.splice(at..at + worse, [new]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const COSTS: Costs = Costs { bytes_per_us: 55_000.0, copy_us: 3.0, wait_us: 2.0 };

    fn layers(most: usize) -> impl Strategy<Value = Vec<Layer>> {
        let layer = (0_u64..4 << 20, 0_u32..200, 0_u32..2);
        prop::collection::vec(layer, 0..most).prop_map(|layers| {
            let blocks = layers.iter().scan(0, |block, (.., is_next)| {
                *block += is_next;
                Some(*block)
            });
            let of = |(&(bytes, compute, _), block)| Layer { bytes, compute_us: f64::from(compute), block };
            layers.iter().zip(blocks).map(of).collect()
        })
    }

    fn costs() -> impl Strategy<Value = Costs> {
        (1_u32..60_000, 0_u32..100, 0_u32..20).prop_map(|(bytes, copy, wait)| Costs {
            bytes_per_us: f64::from(bytes),
            copy_us: f64::from(copy),
            wait_us: f64::from(wait),
        })
    }

    proptest! {
        #[test]
        fn no_division_is_better_than_the_one_that_is_searched(layers in layers(12), costs in costs()) {
            let found = Grouping::Searched.divide(&layers, &costs);
            prop_assert_eq!(found.ends.last().copied().unwrap_or(0), layers.len());
            prop_assert_eq!(predict(&layers, &costs, &found.ends), found.predicted_us);
            let inner = layers.len().saturating_sub(1);
            for chosen in 0_u32..1 << inner {
                let cuts = (1..=inner).filter(|cut| chosen >> (cut - 1) & 1 == 1);
                let ends: Vec<usize> = cuts.chain((!layers.is_empty()).then_some(layers.len())).collect();
                let other = predict(&layers, &costs, &ends);
                prop_assert!(found.predicted_us <= other * (1.0 + 1e-12), "{found:?}: {ends:?} take {other}");
            }
        }

        #[test]
        fn a_start_takes_no_less_than_copying_and_than_computing(layers in layers(100), costs in costs()) {
            // Sums in another order differ in their last bits.
            let found = Grouping::Searched.divide(&layers, &costs).predicted_us * (1.0 + 1e-12);
            let least = found * (1.0 - 2e-12);
            let bytes: u64 = layers.iter().map(|layer| layer.bytes).sum();
            prop_assert!(found >= bytes as f64 / costs.bytes_per_us);
            prop_assert!(found >= layers.iter().map(|layer| layer.compute_us).sum());
            for other in [Grouping::PerLayer, Grouping::PerBlock, Grouping::Whole] {
                prop_assert!(least <= other.divide(&layers, &costs).predicted_us);
            }
        }
    }

    /// ResNet-152's size and time on an H200: 241 MB, 3.9 ms, 467 layers, of which most weights come late.
    #[test]
    fn a_large_model_hides_what_can_be_hidden() {
        let layer = |index: u64| Layer {
            bytes: 241_000_000 * 2 * index / (467 * 466),
            compute_us: 3900.0 / 467.0,
            block: index as u32 / 9,
        };
        let layers: Vec<Layer> = (0..467).map(layer).collect();
        // A search that prunes nothing does not end.
        let found = Grouping::Searched.divide(&layers, &COSTS);
        let copy_us = 241_000_000.0 / COSTS.bytes_per_us;
        assert!(found.predicted_us < 1.06 * copy_us, "{found:?}, {copy_us}");
        assert!(found.predicted_us < Grouping::PerLayer.divide(&layers, &COSTS).predicted_us);
        assert!(found.predicted_us < 0.6 * Grouping::Whole.divide(&layers, &COSTS).predicted_us);
    }
}
