"""The operator nodes of an MLX graph: id, name and fields, as executorch 1.5.1 writes them.

A flat table of facts, in the notation of ``pipeline.pte.flatbuffer`` with these short names:

=======  ======================================================================
``T``    ``Tid``, a tensor slot
``V``    ``Vid``, a value slot
``I``    an int, or the ``Vid`` that holds it
``F``    a float, or the ``Vid`` that holds it
``VT``   a ``Vid`` or a ``Tid``
``IVT``  an int, a ``Vid`` or a ``Tid``
=======  ======================================================================

A node's id is its place in the table, counted from 1.
"""

from __future__ import annotations

OPS: tuple[tuple[int, str, str], ...] = (
    (1, "NoopNode", ""),
    (2, "IdCopyNode", "x:T out:T"),
    (3, "AddmmNode", "mat1:T mat2:T out:T bias:T? alpha:f32=1.0 beta:f32=1.0"),
    (4, "ItemIntNode", "x:T out:V"),
    (5, "ExpandDimsNode", "x:T out:T axis:i32"),
    (6, "TileNode", "x:T out:T reps:[I]"),
    (7, "TakeAlongAxisNode", "x:T indices:T out:T axis:i32"),
    (8, "TakeNode", "x:T out:T index:IVT axis:i32"),
    (9, "RMSNormNode", "x:T weight:T? out:T eps:f32"),
    (10, "LayerNormNode", "x:T out:T weight:T? bias:T? eps:f32"),
    (11, "RopeNode", "x:T out:T dims:i32 offset:VT freqs:T? traditional:bool base:f32=500000.0 scale:f32=1.0"),
    (12, "SdpaNode", "q:T k:T v:T out:T scale:f32 mask:T? causal:bool"),
    (13, "AddNode", "a:T b:T out:T"),
    (14, "AddIntNode", "a:I b:I out:V"),
    (15, "SubtractIntNode", "a:I b:I out:V"),
    (16, "MultiplyIntNode", "a:I b:I out:V"),
    (17, "FloorDivideIntNode", "a:I b:I out:V"),
    (18, "SymSizeNode", "a:T dim:i32 out:V"),
    (19, "MultiplyNode", "a:T b:T out:T"),
    (20, "DivideNode", "a:T b:T out:T"),
    (21, "SubtractNode", "a:T b:T out:T"),
    (22, "Conv1DNode", "x:T w:T out:T stride:i32=1 padding:i32 dilation:i32=1 groups:i32=1"),
    (
        23,
        "Conv2DNode",
        "x:T w:T out:T stride_h:i32=1 stride_w:i32=1 padding_h:i32 padding_w:i32 dilation_h:i32=1 "
        "dilation_w:i32=1 groups:i32=1",
    ),
    (
        24,
        "Conv3DNode",
        "x:T w:T out:T stride_d:i32=1 stride_h:i32=1 stride_w:i32=1 padding_d:i32 padding_h:i32 "
        "padding_w:i32 dilation_d:i32=1 dilation_h:i32=1 dilation_w:i32=1 groups:i32=1",
    ),
    (25, "GeluNode", "x:T out:T approximate:str"),
    (26, "ARangeNode", "out:T start:I stop:I step:I scalar_type:i8=null"),
    (27, "SiluNode", "x:T out:T"),
    (28, "SigmoidNode", "x:T out:T"),
    (29, "TanhNode", "x:T out:T"),
    (30, "SqueezeNode", "x:T out:T dims:[i32]?"),
    (31, "SplitNode", "x:T outs:[T] sizes:[I] axis:i32"),
    (32, "RsqrtNode", "x:T out:T"),
    (33, "MaximumNode", "a:T b:T out:T"),
    (34, "MinimumNode", "a:T b:T out:T"),
    (35, "LogNode", "x:T out:T"),
    (36, "SoftmaxNode", "x:T out:T axis:i32 precise:bool"),
    (37, "BroadcastToNode", "x:T out:T shape:[I]"),
    (38, "PadNode", "x:T out:T pad_width:[I] mode:str constant_value:f32"),
    (39, "WhereNode", "condition:T x:T y:T out:T"),
    (40, "ReshapeNode", "x:T out:T shape:[I]"),
    (41, "TransposeNode", "x:T out:T perm:[i32]"),
    (42, "AsStridedNode", "x:T out:T shape:[I] strides:[I] offset:u64"),
    (43, "ContiguousNode", "x:T out:T"),
    (44, "GatherNode", "x:T indices:[T] out:T axes:[i32] slice_sizes:[i32]"),
    (45, "SliceNode", "x:T out:T axis:I start:I stop:I step:i32=1"),
    (46, "AsTypeNode", "x:T out:T scalar_type:i8"),
    (47, "ConcatenateNode", "tensors:[T] out:T axis:i32"),
    (48, "FullNode", "out:T shape:[I] v:F scalar_type:i8"),
    (49, "FullLikeNode", "x:T out:T v:F scalar_type:i8=null"),
    (50, "ArgmaxNode", "x:T out:T axis:i32 keepdims:bool"),
    (51, "SliceUpdateNode", "dst:T update:T out:T axis:I start:I stop:I step:i32=1"),
    (52, "IndexCopyNode", "dst:T update:T indices:T out:T axis:i32"),
    (
        53,
        "DequantizeNode",
        "w:T scales:T out:T biases:T? group_size:i32 bits:i32 mode:str global_scale:T? dtype:i8=null",
    ),
    (54, "LessNode", "a:T b:T out:T"),
    (55, "LessEqualNode", "a:T b:T out:T"),
    (56, "GreaterNode", "a:T b:T out:T"),
    (57, "GreaterEqualNode", "a:T b:T out:T"),
    (58, "EqualNode", "a:T b:T out:T"),
    (59, "NotEqualNode", "a:T b:T out:T"),
    (60, "LogicalNotNode", "x:T out:T"),
    (61, "LogicalAndNode", "a:T b:T out:T"),
    (62, "LogicalOrNode", "a:T b:T out:T"),
    (63, "TriNode", "out:T n:I m:I k:i32 scalar_type:i8"),
    (64, "TrilNode", "x:T out:T k:i32"),
    (65, "TriuNode", "x:T out:T k:i32"),
    (66, "FloorNode", "x:T out:T"),
    (67, "CeilNode", "x:T out:T"),
    (68, "SquareNode", "x:T out:T"),
    (69, "ExpNode", "x:T out:T"),
    (70, "SinNode", "x:T out:T"),
    (71, "CosNode", "x:T out:T"),
    (72, "TanNode", "x:T out:T"),
    (73, "ArcsinNode", "x:T out:T"),
    (74, "ArccosNode", "x:T out:T"),
    (75, "ArctanNode", "x:T out:T"),
    (76, "SinhNode", "x:T out:T"),
    (77, "CoshNode", "x:T out:T"),
    (78, "ArcsinhNode", "x:T out:T"),
    (79, "ArccoshNode", "x:T out:T"),
    (80, "ArctanhNode", "x:T out:T"),
    (81, "Log2Node", "x:T out:T"),
    (82, "Log10Node", "x:T out:T"),
    (83, "Log1pNode", "x:T out:T"),
    (84, "ErfNode", "x:T out:T"),
    (85, "Expm1Node", "x:T out:T"),
    (86, "RoundNode", "x:T out:T decimals:i32"),
    (87, "ReciprocalNode", "x:T out:T"),
    (88, "SqrtNode", "x:T out:T"),
    (89, "AbsNode", "x:T out:T"),
    (90, "NegNode", "x:T out:T"),
    (91, "Atan2Node", "a:T b:T out:T"),
    (92, "LogAddExpNode", "a:T b:T out:T"),
    (93, "FloorDivideNode", "a:T b:T out:T"),
    (94, "PowerNode", "a:T b:T out:T"),
    (95, "LogSumExpNode", "x:T out:T axes:[i32]? keepdims:bool"),
    (96, "SumNode", "x:T out:T axes:[i32]? keepdims:bool"),
    (97, "MeanNode", "x:T out:T axes:[i32]? keepdims:bool"),
    (98, "VarNode", "x:T out:T axes:[i32]? keepdims:bool ddof:i32"),
    (99, "StdNode", "x:T out:T axes:[i32]? keepdims:bool ddof:i32"),
    (100, "ProdNode", "x:T out:T axes:[i32]? keepdims:bool"),
    (101, "MaxNode", "x:T out:T axes:[i32]? keepdims:bool"),
    (102, "MinNode", "x:T out:T axes:[i32]? keepdims:bool"),
    (103, "ArgminNode", "x:T out:T axis:i32 keepdims:bool"),
    (104, "MedianNode", "x:T out:T axes:[i32]? keepdims:bool"),
    (105, "ModIntNode", "a:I b:I out:V"),
    (106, "RemainderNode", "a:T b:T out:T"),
    (
        107,
        "ConvTranspose1DNode",
        "x:T w:T out:T stride:i32=1 padding:i32 dilation:i32=1 output_padding:i32 groups:i32=1",
    ),
    (
        108,
        "ConvTranspose2DNode",
        "x:T w:T out:T stride_h:i32=1 stride_w:i32=1 padding_h:i32 padding_w:i32 dilation_h:i32=1 "
        "dilation_w:i32=1 output_padding_h:i32 output_padding_w:i32 groups:i32=1",
    ),
    (
        109,
        "ConvTranspose3DNode",
        "x:T w:T out:T stride_d:i32=1 stride_h:i32=1 stride_w:i32=1 padding_d:i32 padding_h:i32 "
        "padding_w:i32 dilation_d:i32=1 dilation_h:i32=1 dilation_w:i32=1 output_padding_d:i32 "
        "output_padding_h:i32 output_padding_w:i32 groups:i32=1",
    ),
    (110, "ClipNode", "x:T out:T a_min:T? a_max:T?"),
    (111, "CumsumNode", "x:T out:T axis:i32 reverse:bool inclusive:bool=true"),
    (112, "StackNode", "tensors:[T] out:T axis:i32"),
    (113, "SignNode", "x:T out:T"),
    (114, "AnyNode", "x:T out:T axes:[i32]? keepdims:bool"),
    (115, "AllNode", "x:T out:T axes:[i32]? keepdims:bool"),
    (116, "RepeatNode", "x:T out:T repeats:I axis:i32"),
    (117, "SortNode", "x:T out:T axis:i32"),
    (118, "ArgsortNode", "x:T out:T axis:i32"),
    (119, "PartitionNode", "x:T out:T kth:I axis:i32"),
    (120, "ArgPartitionNode", "x:T out:T kth:I axis:i32"),
    (
        121,
        "QuantizedMatmulNode",
        "x:T w:T scales:T out:T biases:T? group_size:i32 bits:i32 mode:str transpose:bool=true",
    ),
    (122, "ScatterAddNode", "x:T indices:T updates:T out:T axis:i32"),
    (123, "GatherMmNode", "a:T b:T out:T lhs_indices:T? rhs_indices:T? sorted_indices:bool sorted_indices_flag:I?"),
    (
        124,
        "GatherQmmNode",
        "x:T w:T scales:T out:T mode:str biases:T? lhs_indices:T? rhs_indices:T? transpose:bool=true "
        "group_size:i32 bits:i32 sorted_indices:bool sorted_indices_flag:I?",
    ),
    (125, "ScanNode", "originals:[T] sliced:[T] outputs:[T] carry:[T] body_chain_idx:i32 scan_axis:i32=1"),
    (
        126,
        "MetalKernelNode",
        "name:str source:str inputs:[T] outputs:[T] grid:[I] threadgroup:[I] header:str? input_names:[str]? "
        "output_names:[str]? ensure_row_contiguous:bool=true atomic_outputs:bool output_shapes_flat:[I]? "
        "output_shape_lengths:[i32]? output_dtypes:[i8]? template_arg_names:[str]? template_arg_kinds:[i8]? "
        "template_arg_values:[i32]? init_value:f32=null",
    ),
    (127, "BitwiseInvertNode", "x:T out:T"),
    (128, "RollNode", "x:T out:T shift:[I] axes:[i32]"),
    (129, "BitwiseAndNode", "a:T b:T out:T"),
    (130, "BitwiseOrNode", "a:T b:T out:T"),
    (131, "BitwiseXorNode", "a:T b:T out:T"),
    (132, "IfNode", "cond:I then_chain_idx:u32 else_chain_idx:u32"),
    (133, "RandomBitsNode", "out:T shape:[I] seed:V? width:i32=4"),
    (134, "UpdateAndAttendNode", "q:T k:T v:T position:T out:T layer_id:i32=null scale:f32=null out_dtype:i8=null"),
    (135, "TruncNode", "x:T out:T"),
    (136, "FlipNode", "x:T out:T axes:[i32]"),
)

MAX_OP_ID = len(OPS)
