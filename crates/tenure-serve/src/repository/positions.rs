//! The positions that a network knows, from its options.

use serde_json::{Map, Value};

/// The keys for the number of positions, in different model types.
const POSITIONS: [&str; 3] = ["max_position_embeddings", "n_positions", "max_seq_len"];

/// Parts of the names of model types whose first positions are never used.
const OFFSET_POSITIONS: [&str; 5] = ["roberta", "camembert", "mpnet", "longformer", "data2vec-text"];

/// Returns the most tokens of a row for a model with these options, if its positions are limited.
pub(super) fn max_tokens(options: &Map<String, Value>) -> Option<u64> {
    let text = options.get("text_config").and_then(Value::as_object).unwrap_or(options);
    // Relative positions have no limit.
    if text.contains_key("relative_attention_num_buckets") {
        return None;
    }
    let positions = POSITIONS.into_iter().find_map(|key| text.get(key)?.as_u64()).filter(|positions| *positions > 0)?;
    let model_type = text.get("model_type").and_then(Value::as_str).unwrap_or_default();
    // RoBERTa's positions begin after that of the padding.
    let unused = if OFFSET_POSITIONS.iter().any(|name| model_type.contains(name)) {
        text.get("pad_token_id").and_then(Value::as_u64).unwrap_or(1) + 1
    } else {
        0
    };
    Some(positions.saturating_sub(unused).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_tokens_are_the_positions_that_the_model_uses() {
        for (config, expected) in [
            (r#"{"model_type": "bert", "max_position_embeddings": 512}"#, Some(512)),
            (r#"{"model_type": "gpt2", "n_positions": 1024, "n_ctx": 7}"#, Some(1024)),
            (r#"{"model_type": "xlm-roberta", "max_position_embeddings": 514, "pad_token_id": 1}"#, Some(512)),
            (r#"{"model_type": "x", "text_config": {"max_position_embeddings": 77}}"#, Some(77)),
            (r#"{"model_type": "t5", "n_positions": 512, "relative_attention_num_buckets": 32}"#, None),
            (r#"{"model_type": "xlnet", "max_position_embeddings": -1}"#, None),
            (r#"{"model_type": "resnet"}"#, None),
        ] {
            let options: Map<String, Value> = serde_json::from_str(config).unwrap();
            assert_eq!(max_tokens(&options), expected, "{config}");
        }
    }
}
