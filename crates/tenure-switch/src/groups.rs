//! The division of a model's layers into groups. Each group is copied at once and waited for at once.
//!
//! Few groups cost little, but the first layer waits long; many groups cost a copy and a wait each. PipeSwitch
//! (OSDI'20, section 4.2) searches all divisions and prunes those that cannot be better. Here the search is exact and
//! takes milliseconds. The groups after a boundary depend only on the number of groups before it and on the time when
//! their computation ended. So of all divisions up to a layer, one with more groups that ends no earlier is dropped.

/// A layer of a model, as measured on a device: its weights, and the compute time that uses them. Layers run one after
/// the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layer {
    /// The bytes that are copied for it.
    pub bytes: u64,
    /// The time from its first kernel to that of the next layer, in µs.
    pub compute_us: f64,
    /// The block of the model that it belongs to, such as a layer of a transformer. Block numbers never fall from one
    /// layer to the next.
    pub block: u32,
}

/// The costs of a division.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// The speed of copies to the device, in bytes per µs.
    pub bytes_per_us: f64,
    /// The fixed time of a copy, in µs.
    pub copy_us: f64,
    /// The time of a wait for a group that is there already, in µs.
    pub wait_us: f64,
}

/// A method of dividing layers into groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grouping {
    /// The division with which the last layer ends as early as possible.
    #[default]
    Searched,
    /// One group for each layer.
    PerLayer,
    /// One group for each block of the model.
    PerBlock,
    /// One group: nothing is computed while weights are copied.
    Whole,
}

/// A division of layers.
#[derive(Clone, Debug, PartialEq)]
pub struct Groups {
    /// The index after each group's last layer.
    pub ends: Vec<usize>,
    /// The time from the begin of the first copy to the end of the last kernel, in µs, by the costs that the division
    /// was made for.
    pub predicted_us: f64,
}

impl Grouping {
    /// Divides layers into groups.
    pub fn divide(self, layers: &[Layer], costs: &Costs) -> Groups {
        let count = layers.len();
        let ends: Vec<usize> = match self {
            Self::Searched => return search(layers, costs),
            Self::PerLayer => (1..=count).collect(),
            Self::PerBlock => {
                (1..=count).filter(|end| *end == count || layers[*end].block != layers[end - 1].block).collect()
            }
            Self::Whole => (count > 0).then_some(count).into_iter().collect(),
        };
        Groups { predicted_us: predict(layers, costs, &ends), ends }
    }
}

/// Returns the time of a cold start, from the begin of the first copy to the end of the last kernel, in µs. Groups are
/// copied one after the other. Each is computed when it is there and the group before it is done.
pub fn predict(layers: &[Layer], costs: &Costs, ends: &[usize]) -> f64 {
    let mut begin = 0;
    let mut copied_us = 0.0;
    let mut computed_us = 0.0_f64;
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

/// A division of the layers before a boundary, where a boundary is the index of a layer.
struct PartialDivision {
    groups: usize,
    /// The time at which the last of these layers is computed, in µs.
    computed_us: f64,
    /// The previous boundary, and the index of its division.
    before: (usize, usize),
}

/// Returns the division that ends earliest.
fn search(layers: &[Layer], costs: &Costs) -> Groups {
    let count = layers.len();
    let sums = |of: fn(&Layer) -> f64| {
        let running = layers.iter().scan(0.0, move |sum, layer| {
            *sum += of(layer);
            Some(*sum)
        });
        std::iter::once(0.0).chain(running).collect::<Vec<f64>>()
    };
    let bytes = sums(|layer| layer.bytes as f64);
    let compute_us = sums(|layer| layer.compute_us);
    let fixed =
        [Grouping::Whole, Grouping::PerBlock, Grouping::PerLayer].map(|grouping| grouping.divide(layers, costs));
    let best = fixed.into_iter().min_by(|a, b| a.predicted_us.total_cmp(&b.predicted_us));
    let mut best = best.expect("there are three");
    // The divisions of each boundary, by their number of groups; each one ends earlier than the one before.
    let mut divisions: Vec<Vec<PartialDivision>> = (0..=count).map(|_| Vec::new()).collect();
    divisions[0].push(PartialDivision { groups: 0, computed_us: 0.0, before: (0, 0) });
    for begin in 0..count {
        let (complete, later) = divisions.split_at_mut(begin + 1);
        for (index, division) in complete[begin].iter().enumerate() {
            let groups = division.groups + 1;
            for end in begin + 1..=count {
                let copied_us = bytes[end] / costs.bytes_per_us + groups as f64 * costs.copy_us;
                let ready_us = division.computed_us.max(copied_us) + costs.wait_us;
                // The layers from `begin` on take at least their compute time after the copy, and more layers in the
                // group only delay it.
                if ready_us + compute_us[count] - compute_us[begin] >= best.predicted_us {
                    break;
                }
                let computed_us = ready_us + compute_us[end] - compute_us[begin];
                insert(&mut later[end - begin - 1], PartialDivision { groups, computed_us, before: (begin, index) });
            }
        }
        // Only the divisions at the last boundary cover all layers.
        if let Some(last) = divisions[count].last().filter(|last| last.computed_us < best.predicted_us) {
            best.predicted_us = last.computed_us;
        }
    }
    let Some(index) = divisions[count].iter().position(|last| last.computed_us <= best.predicted_us) else {
        return best;
    };
    let mut ends = Vec::new();
    let mut at = (count, index);
    while at.0 > 0 {
        ends.push(at.0);
        at = divisions[at.0][at.1].before;
    }
    ends.reverse();
    Groups { predicted_us: predict(layers, costs, &ends), ends }
}

/// Adds a division to those of its boundary, unless a known one is at least as good in both respects. Removes those
/// that it is at least as good as.
fn insert(divisions: &mut Vec<PartialDivision>, new: PartialDivision) {
    let at = divisions.partition_point(|known| known.groups < new.groups);
    let is_better = |known: &PartialDivision| known.groups <= new.groups && known.computed_us <= new.computed_us;
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
            layers
                .iter()
                .zip(blocks)
                .map(|(&(bytes, compute, _), block)| Layer { bytes, compute_us: f64::from(compute), block })
                .collect()
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
            // Sums in a different order differ in their last bits.
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

    /// The size and time of ResNet-152 on an H200: 241 MB, 3.9 ms, 467 layers, with most weights in the later ones.
    #[test]
    fn a_large_model_hides_what_can_be_hidden() {
        let layers: Vec<Layer> = (0..467)
            .map(|index| Layer {
                bytes: 241_000_000 * 2 * index / (467 * 466),
                compute_us: 3900.0 / 467.0,
                block: index as u32 / 9,
            })
            .collect();
        // Without pruning, the search would not end.
        let found = Grouping::Searched.divide(&layers, &COSTS);
        let copy_us = 241_000_000.0 / COSTS.bytes_per_us;
        assert!(found.predicted_us < 1.06 * copy_us, "{found:?}, {copy_us}");
        assert!(found.predicted_us < Grouping::PerLayer.divide(&layers, &COSTS).predicted_us);
        assert!(found.predicted_us < 0.6 * Grouping::Whole.divide(&layers, &COSTS).predicted_us);
    }
}
