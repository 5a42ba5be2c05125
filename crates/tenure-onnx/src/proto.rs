//! Messages of ONNX's format: the fields of `onnx.proto3` that an export writes. They are written by hand: the schema,
//! its generated code and a test that compares them are more lines, for a format whose field numbers never change.

use prost::{Message, Oneof};

/// A model: a graph, and the versions of what it is written in.
#[derive(Clone, PartialEq, Message)]
pub struct ModelProto {
    /// The version of the format.
    #[prost(int64, tag = "1")]
    pub ir_version: i64,
    /// The program that wrote the model.
    #[prost(string, tag = "2")]
    pub producer_name: String,
    /// The version of that program.
    #[prost(string, tag = "3")]
    pub producer_version: String,
    /// The graph.
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    /// The versions of the sets of operators.
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSetIdProto>,
}

/// A version of a set of operators.
#[derive(Clone, PartialEq, Message)]
pub struct OperatorSetIdProto {
    /// The set: empty for ONNX's own.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// The version.
    #[prost(int64, tag = "2")]
    pub version: i64,
}

/// A graph: nodes in an order in which they can run.
#[derive(Clone, PartialEq, Message)]
pub struct GraphProto {
    /// The nodes.
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeProto>,
    /// The name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Constants and parameters.
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorProto>,
    /// The inputs.
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfoProto>,
    /// The outputs.
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfoProto>,
}

/// A call of an operator.
#[derive(Clone, PartialEq, Message)]
pub struct NodeProto {
    /// The names of the inputs; an empty one for an input that is left out.
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    /// The names of the outputs.
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    /// The name.
    #[prost(string, tag = "3")]
    pub name: String,
    /// The operator.
    #[prost(string, tag = "4")]
    pub op_type: String,
    /// The attributes.
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeProto>,
}

/// An attribute of a node.
#[derive(Clone, PartialEq, Message)]
pub struct AttributeProto {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// A number.
    #[prost(float, optional, tag = "2")]
    pub f: Option<f32>,
    /// An integer.
    #[prost(int64, optional, tag = "3")]
    pub i: Option<i64>,
    /// A text.
    #[prost(bytes = "vec", optional, tag = "4")]
    pub s: Option<Vec<u8>>,
    /// A tensor.
    #[prost(message, optional, tag = "5")]
    pub t: Option<TensorProto>,
    /// Integers.
    #[prost(int64, repeated, tag = "8")]
    pub ints: Vec<i64>,
    /// The field that holds the value: one of `AttributeType`.
    #[prost(int32, tag = "20")]
    pub r#type: i32,
}

/// The numbers of `AttributeProto.AttributeType`.
pub mod attribute_type {
    /// [`AttributeProto::f`](super::AttributeProto::f).
    pub const FLOAT: i32 = 1;
    /// [`AttributeProto::i`](super::AttributeProto::i).
    pub const INT: i32 = 2;
    /// [`AttributeProto::s`](super::AttributeProto::s).
    pub const STRING: i32 = 3;
    /// [`AttributeProto::t`](super::AttributeProto::t).
    pub const TENSOR: i32 = 4;
    /// [`AttributeProto::ints`](super::AttributeProto::ints).
    pub const INTS: i32 = 7;
}

/// A tensor: its bytes, or where they are in another file.
#[derive(Clone, PartialEq, Message)]
pub struct TensorProto {
    /// The sizes.
    #[prost(int64, repeated, tag = "1")]
    pub dims: Vec<i64>,
    /// The number of the type of elements.
    #[prost(int32, tag = "2")]
    pub data_type: i32,
    /// The name.
    #[prost(string, tag = "8")]
    pub name: String,
    /// The elements in little-endian order.
    #[prost(bytes = "vec", optional, tag = "9")]
    pub raw_data: Option<Vec<u8>>,
    /// The place in another file.
    #[prost(message, repeated, tag = "13")]
    pub external_data: Vec<StringStringEntryProto>,
    /// 1 if the elements are in another file.
    #[prost(int32, optional, tag = "14")]
    pub data_location: Option<i32>,
}

/// A key and its value.
#[derive(Clone, PartialEq, Message)]
pub struct StringStringEntryProto {
    /// The key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// An input or an output.
#[derive(Clone, PartialEq, Message)]
pub struct ValueInfoProto {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The type.
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<TypeProto>,
}

/// A type: always that of a tensor.
#[derive(Clone, PartialEq, Message)]
pub struct TypeProto {
    /// The tensor's type.
    #[prost(message, optional, tag = "1")]
    pub tensor_type: Option<TensorTypeProto>,
}

/// The type of a tensor.
#[derive(Clone, PartialEq, Message)]
pub struct TensorTypeProto {
    /// The number of the type of elements.
    #[prost(int32, tag = "1")]
    pub elem_type: i32,
    /// The sizes.
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShapeProto>,
}

/// Sizes.
#[derive(Clone, PartialEq, Message)]
pub struct TensorShapeProto {
    /// The size of each dimension.
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<DimensionProto>,
}

/// The size of a dimension.
#[derive(Clone, PartialEq, Message)]
pub struct DimensionProto {
    /// The size.
    #[prost(oneof = "DimensionValue", tags = "1, 2")]
    pub value: Option<DimensionValue>,
}

/// A size, or a name for it.
#[derive(Clone, PartialEq, Oneof)]
pub enum DimensionValue {
    /// The size.
    #[prost(int64, tag = "1")]
    Size(i64),
    /// The name of an axis whose size varies.
    #[prost(string, tag = "2")]
    Name(String),
}
