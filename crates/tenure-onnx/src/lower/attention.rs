//! Attention, and positions as rotations.

use super::{Lower, Lowered, Refusal, one};
use crate::graph::{GraphValue, int, one_number};
use crate::size::Size;
use tenure_tensor::{DType, Scalar};

pub(super) fn lower(call: &mut Lower<'_, '_>) -> Lowered {
    match call.operation() {
        "scaled_dot_product_attention" => call.attention(),
        "rotary" => call.rotary(),
        _ => Err(Refusal::Unmapped),
    }
}

impl Lower<'_, '_> {
    fn attention(&mut self) -> Lowered {
        if self.float("dropout_p")? > 0.0 {
            return Err("dropout draws random numbers: call eval() on the module first".into());
        }
        let query = self.tensor("query")?;
        let (key, value) = self.pair("key", "value")?;
        self.check_dtypes(&[&query, &key, &value])?;
        let dtype = query.dtype;
        let rank = query.rank();
        let width = self.fixed("the size of a head", query.sizes[rank - 1])?;
        let scale = self.scalar("scale")?.map_or_else(|| (width as f64).sqrt().recip(), Scalar::to_f64);
        let key = self.repeated(&query, key)?;
        let value = self.repeated(&query, value)?;
        let keys = self.matrix_transposed(&key, rank);
        let queries = self.multiple(&query.name, scale, dtype);
        let mut scores = self.op("MatMul", &[&queries, &keys], vec![]);
        let lowest = self.constant(f64::NEG_INFINITY, dtype);
        if self.flag("is_causal")? {
            let keys = self.tensor("key")?;
            let sizes = [query.sizes[rank - 2], keys.sizes[rank - 2]];
            let mask = self.causal_mask(sizes)?;
            scores = self.op("Where", &[&mask, &scores, &lowest], vec![]);
        }
        if let Some(mask) = self.optional("attn_mask")? {
            scores = if mask.dtype == DType::Bool {
                self.op("Where", &[&mask.name, &scores, &lowest], vec![])
            } else {
                let mask = self.graph().cast(&mask.name, mask.dtype, dtype);
                self.op("Add", &[&scores, &mask], vec![])
            };
        }
        let mut weights = self.op("Softmax", &[&scores], vec![int("axis", -1)]);
        if !self.is_none("attn_mask") {
            weights = self.without_hidden_rows(&scores, &weights, dtype);
        }
        one(self.op("MatMul", &[&weights, &value], vec![]))
    }

    /// Returns weights that are 0 for queries from which a mask hides all keys. Their softmax has no values.
    fn without_hidden_rows(&mut self, scores: &str, weights: &str, dtype: DType) -> String {
        let axes = self.graph().ints(&[-1]);
        let largest = self.op("ReduceMax", &[scores, &axes], vec![]);
        let compared = if dtype == DType::F64 { dtype } else { DType::F32 };
        let largest = self.graph().cast(&largest, dtype, compared);
        let lowest = self.constant(f64::NEG_INFINITY, compared);
        let is_hidden = self.op("Equal", &[&largest, &lowest], vec![]);
        let zero = self.constant(0, dtype);
        self.op("Where", &[&is_hidden, &zero, weights], vec![])
    }

    /// Returns which keys a query sees: those that are not after it.
    fn causal_mask(&mut self, sizes: [Size; 2]) -> Result<String, Refusal> {
        let sizes = self.graph().sizes(&sizes)?;
        // Boolean triangles are not in all versions of ONNX Runtime.
        let ones = self.op("ConstantOfShape", &[&sizes], vec![one_number("value", Scalar::Float(1.0), DType::F32)]);
        let triangle = self.op("Trilu", &[&ones], vec![int("upper", 0)]);
        Ok(self.graph().cast(&triangle, DType::F32, DType::Bool))
    }

    /// Returns keys or values with each head repeated for the heads of queries that share it.
    fn repeated(&mut self, query: &GraphValue, shared: GraphValue) -> Result<String, Refusal> {
        let rank = query.rank();
        if rank < 3 || shared.rank() != rank || shared.sizes[rank - 3] == query.sizes[rank - 3] {
            return Ok(shared.name);
        }
        let heads = [query, &shared].map(|heads| heads.sizes[rank - 3]);
        let count =
            heads[0].divided(heads[1]).and_then(Size::known).ok_or("the heads of queries do not share keys evenly")?;
        let mut sizes = shared.sizes.clone();
        sizes.insert(rank - 2, Size::fixed(1));
        let axes = self.graph().ints(&[rank as i64 - 2]);
        let one = self.op("Unsqueeze", &[&shared.name, &axes], vec![]);
        let mut many = sizes.clone();
        many[rank - 2] = Size::fixed(count);
        let repeated = self.expand(&one, &sizes, &many)?;
        let mut joined = shared.sizes.clone();
        joined[rank - 3] = heads[0];
        self.reshape(&repeated, &many, &joined)
    }

    fn rotary(&mut self) -> Lowered {
        let input = self.tensor("input")?;
        let (cos, sin) = self.pair("cos", "sin")?;
        let dtype = input.dtype;
        let axis = input.rank() as i64 - 1;
        let width = self.fixed("the last dimension", input.sizes[input.rank() - 1])?;
        let [cos, sin] = [cos, sin].map(|angles| self.graph().cast(&angles.name, angles.dtype, dtype));
        let halves = self.graph().ints(&[width / 2, width / 2]);
        let halves = self.all.graph.ops("Split", &[&input.name, &halves], 2, vec![int("axis", axis)]);
        let by_cos = [0, 1].map(|half| self.op("Mul", &[&halves[half], &cos], vec![]));
        let by_sin = [0, 1].map(|half| self.op("Mul", &[&halves[half], &sin], vec![]));
        let first = self.op("Sub", &[&by_cos[0], &by_sin[1]], vec![]);
        let second = self.op("Add", &[&by_cos[1], &by_sin[0]], vec![]);
        one(self.op("Concat", &[&first, &second], vec![int("axis", axis)]))
    }
}
