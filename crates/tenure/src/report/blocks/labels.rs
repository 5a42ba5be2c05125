//! The labels of a page's blocks and segments: tags, compile contexts and pools.

use rustc_hash::FxHashMap;
use serde::Serialize;
use tenure_plan::{MemoryPool, Trace};

use super::history::{BlockHistory, Life};
use super::tables::Tables;

/// Distinct labels. Each is three numbers: tag, compile context, pool; 0 for none, or the number of its string plus
/// one.
#[derive(Default, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub(super) struct Labels {
    pub(super) labels: Vec<[u64; 3]>,
    #[serde(skip)]
    numbers: FxHashMap<[u64; 3], u64>,
}

impl Labels {
    /// Returns the number of the label of a block or a segment plus one, or 0.
    pub(super) fn number(&mut self, trace: &Trace, history: &BlockHistory, life: &Life, tables: &mut Tables) -> u64 {
        let label = trace.labels().of_event(life.made);
        let name = history.names.get(&life.made).and_then(|&event| trace.labels().of_event(event)?.tag.as_deref());
        let tag = match (label.and_then(|label| label.tag.as_deref()), name) {
            (Some(tag), Some(name)) => Some(format!("{tag} · {name}")),
            (tag, name) => name.or(tag).map(str::to_owned),
        };
        let context = label.and_then(|label| label.compile_context.as_deref());
        let pool = label.and_then(|label| label.pool).map(pool_name);
        let mut string = |text: Option<&str>| text.map_or(0, |text| tables.string(text) + 1);
        let label = [string(tag.as_deref()), string(context), string(pool.as_deref())];
        if label == [0; 3] {
            return 0;
        }
        *self.numbers.entry(label).or_insert_with(|| {
            self.labels.push(label);
            self.labels.len() as u64
        })
    }
}

fn pool_name(pool: MemoryPool) -> String {
    match pool {
        (0, 0) => "default".to_owned(),
        (first, second) => format!("({first}, {second})"),
    }
}
