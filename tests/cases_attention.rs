//! Attention on the adapter, by a GPU's and a CPU's kernel: the T rows of the public bug reports that kiln's tests are
//! numbered by, then head sizes, lengths and masks at large.

mod device;

use device::{Named, assert_numbers, check, direct, fill_as, noise, poisoned, refs, run, session, tiled};
use kiln::caps::DeviceCaps;
use kiln::graph::{Builder, DType, Graph, TensorType, ValueId};
use kiln::kernel::KernelKey;
use kiln::reference::evaluate;
use kiln::session::{CompileOptions, Mode, Session, compile};
use kiln::tensor::Tensor;

/// One attention with its operands.
#[derive(Clone)]
struct Case {
    heads: usize,
    scale: f32,
    causal: bool,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Option<Tensor>,
    lengths: Option<Vec<i32>>,
}

impl Case {
    /// Scattered numbers; head size `d`.
    fn noise(batch: usize, heads: usize, [sq, sk]: [usize; 2], d: usize) -> Case {
        let tensor = |seed, rows| fill_as(DType::F32, &[batch, rows, heads * d], |i| 2.0 * noise(seed, i));
        let scale = (d as f32).powf(-0.5);
        let (q, k, v) = (tensor(1, sq), tensor(2, sk), tensor(3, sk));
        Case { heads, scale, causal: false, q, k, v, mask: None, lengths: None }
    }

    /// One head of size 1; every key weighs the same, and values are given by batch entry and position.
    fn uniform(sq: usize, v: &[&[f32]]) -> Case {
        let (batch, sk) = (v.len(), v[0].len());
        let zeros = |rows| Tensor::zeros(TensorType::new(DType::F32, [batch, rows, 1]));
        let v = Tensor::f32([batch, sk, 1], &v.concat());
        Case { heads: 1, scale: 1.0, causal: false, q: zeros(sq), k: zeros(sk), v, mask: None, lengths: None }
    }

    fn causal(mut self) -> Case {
        self.causal = true;
        self
    }

    fn lengths(mut self, lengths: &[i32]) -> Case {
        self.lengths = Some(lengths.to_vec());
        self
    }

    fn mask(mut self, dims: &[usize], f: impl Fn(usize) -> f64) -> Case {
        self.mask = Some(fill_as(self.q.dtype(), dims, f));
        self
    }

    fn cast(mut self, dtype: DType) -> Case {
        self.q = self.q.cast(dtype);
        self.k = self.k.cast(dtype);
        self.v = self.v.cast(dtype);
        self.mask = self.mask.map(|m| m.cast(dtype));
        self
    }

    /// NaN in every key and value that no query may see.
    fn poison_padding(mut self) -> Case {
        let (sk, width) = (self.k.shape().dims()[1], self.k.shape().last());
        let lengths = self.lengths.clone().unwrap_or_default();
        for tensor in [&mut self.k, &mut self.v] {
            let mut values = tensor.to_f64();
            for (b, length) in lengths.iter().enumerate() {
                values[(b * sk + *length as usize) * width..(b + 1) * sk * width].fill(f64::NAN);
            }
            *tensor = Tensor::from_f64(tensor.ty().clone(), &values);
        }
        self
    }

    fn graph(&self) -> Graph {
        graph(std::slice::from_ref(self))
    }

    fn inputs(&self) -> Named {
        inputs(std::slice::from_ref(self))
    }

    /// Output and log-sum-exp are the reference's.
    fn check(&self, session: &Session, tolerance: f64) {
        check_all(session, std::slice::from_ref(self), tolerance);
    }

    /// The output by the reference and both kernels is this.
    fn gives(&self, session: &Session, expected: &[f64]) {
        let reference = evaluate(&self.graph(), &Named::new(), &self.inputs()).expect("runs");
        assert_numbers("reference", &reference["out"].data, expected, 1e-12);
        self.check(session, 1e-6);
    }
}

/// The name of the i-th case's input or output; the first has none to add.
fn name(what: &str, i: usize) -> String {
    if i == 0 { what.to_owned() } else { format!("{what}{i}") }
}

/// Cases side by side in one graph, so that those with the same kernel share it.
fn graph(cases: &[Case]) -> Graph {
    let mut b = Builder::new();
    for (i, case) in cases.iter().enumerate() {
        let mut input = |what: &str, tensor: &Tensor| b.input(&name(what, i), tensor.ty().clone()).expect("a new name");
        let (q, k, v) = (input("q", &case.q), input("k", &case.k), input("v", &case.v));
        let mask = case.mask.as_ref().map(|m| input("mask", m));
        let lengths = case.lengths.as_ref().map(|l| input("lengths", &Tensor::i32([l.len()], l)));
        let out = b.attention(q, k, v, case.heads, case.scale, case.causal, mask, lengths).expect("shapes fit");
        b.output(&name("out", i), out).expect("a new name");
        b.output(&name("lse", i), ValueId { node: out.node, output: 1 }).expect("a new name");
    }
    b.finish().expect("valid")
}

fn inputs(cases: &[Case]) -> Named {
    let mut inputs = Named::new();
    for (i, case) in cases.iter().enumerate() {
        let lengths = case.lengths.as_ref().map(|l| Tensor::i32([l.len()], l));
        let given = [("q", Some(&case.q)), ("k", Some(&case.k)), ("v", Some(&case.v))];
        let given = given.into_iter().chain([("mask", case.mask.as_ref()), ("lengths", lengths.as_ref())]);
        inputs.extend(given.filter_map(|(what, tensor)| Some((name(what, i), tensor?.clone()))));
    }
    inputs
}

/// Outputs and log-sum-exps are the reference's.
fn check_all(session: &Session, cases: &[Case], tolerance: f64) {
    check(session, &graph(cases), &Named::new(), &inputs(cases), Mode::Fused, tolerance);
}

fn both(session: &Session) -> [CompileOptions; 2] {
    [tiled(session, poisoned(Mode::Fused)), direct(session, poisoned(Mode::Fused))]
}

fn has_f16(session: &Session) -> bool {
    if !session.caps().f16 {
        println!("skipped: {} has no f16", session.adapter());
    }
    session.caps().f16
}

/// The blocks that the tiled kernel takes under these limits.
fn block(case: &Case, caps: &DeviceCaps) -> Option<(usize, usize)> {
    let compiled = compile(&case.graph(), caps, &CompileOptions::default()).expect("fits");
    let mut keys = compiled.recording.kernels.iter().map(|k| &k.key);
    keys.find_map(|k| if let KernelKey::Attention(a) = k { Some(a.block) } else { None }).expect("one attention")
}

#[test]
fn t01_a_row_that_sees_no_key_is_zero_and_no_other_is_touched() {
    let Some(session) = session() else { return };
    // query 1 of both heads sees nothing, query 2 only key 0
    let hidden = |i: usize| match (i / 5 % 4, i % 5) {
        (1, _) | (2, 1..) => f64::NEG_INFINITY,
        _ => noise(4, i),
    };
    let case = Case::noise(2, 2, [4, 5], 8).mask(&[4, 5], hidden);
    case.check(session, 1e-5);
    for options in both(session) {
        let out = run(session, &case.graph(), &Named::new(), &case.inputs(), &options);
        let (rows, lse) = (out["out"].to_f64(), out["lse"].to_f64());
        for row in [1, 5] {
            assert_eq!(rows[row * 16..(row + 1) * 16], [0.0; 16]);
        }
        assert!(rows.iter().all(|x| x.is_finite()));
        let hidden = lse.iter().enumerate().filter(|(_, x)| **x == f64::NEG_INFINITY).map(|(i, _)| i % 4);
        assert_eq!(hidden.collect::<Vec<_>>(), [1; 4]);
    }
}

#[test]
fn t01_a_bool_mask_that_is_made_additive_hides_a_row_too() {
    let Some(session) = session() else { return };
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::F32, [1, 3, 4])).unwrap();
    let mask = b.input("mask", TensorType::new(DType::Bool, [3, 3])).unwrap();
    let zeros = b.constant(0.0, TensorType::new(DType::F32, [3, 3])).unwrap();
    let additive = b.masked_fill(zeros, mask, f32::NEG_INFINITY).unwrap();
    let out = b.attention(x, x, x, 1, 0.5, false, Some(additive), None).unwrap();
    // as written, with the rule of softmax: the row is NaN
    let scores = b.matmul_transposed(x, false, x, true).unwrap();
    let scores = b.masked_fill(scores, mask, f32::NEG_INFINITY).unwrap();
    let weights = b.softmax(scores, 2).unwrap();
    let written = b.matmul(weights, x).unwrap();
    b.output("out", out).unwrap();
    b.output("written", written).unwrap();
    let graph = b.finish().unwrap();
    let x = fill_as(DType::F32, &[1, 3, 4], |i| noise(1, i));
    let mask = fill_as(DType::Bool, &[3, 3], |i| f64::from(i / 3 == 1 || i == 2));
    let inputs = device::named([("x", x), ("mask", mask)]);
    check(session, &graph, &Named::new(), &inputs, Mode::Fused, 1e-5);
    for options in both(session) {
        let out = run(session, &graph, &Named::new(), &inputs, &options);
        assert_eq!(out["out"].to_f64()[4..8], [0.0; 4]);
        let written = out["written"].to_f64();
        assert!(written[4..8].iter().all(|x| x.is_nan()));
        assert!(written[..4].iter().chain(&written[8..]).all(|x| x.is_finite()));
    }
}

#[test]
fn t01_what_a_key_behind_a_mask_of_minus_infinity_holds_does_not_matter() {
    let Some(session) = session() else { return };
    let mut case = Case::noise(1, 2, [9, 6], 8).mask(&[6], |i| if i == 2 || i == 5 { f64::NEG_INFINITY } else { 0.0 });
    for (tensor, bad) in [(&mut case.k, f64::NAN), (&mut case.v, f64::INFINITY)] {
        let mut values = tensor.to_f64();
        values[2 * 16..3 * 16].fill(bad);
        values[5 * 16..].fill(-bad);
        *tensor = Tensor::from_f64(tensor.ty().clone(), &values);
    }
    case.check(session, 1e-5);
}

#[test]
fn t03_fewer_queries_than_keys_are_the_last_ones() {
    let Some(session) = session() else { return };
    Case::uniform(2, &[&[1.0, 2.0, 3.0, 4.0, 5.0]]).causal().gives(session, &[2.5, 3.0]);
    let shapes = [[1, 40], [3, 17], [16, 33], [31, 70], [65, 129]];
    check_all(session, &shapes.map(|s| Case::noise(2, 3, s, 8).causal()), 1e-5);
}

#[test]
fn t04_more_queries_than_keys_begin_with_rows_of_zero() {
    let Some(session) = session() else { return };
    Case::uniform(5, &[&[1.0, 2.0]]).causal().gives(session, &[0.0, 0.0, 0.0, 1.0, 1.5]);
    let shapes = [[40, 1], [17, 3], [70, 31], [129, 65]];
    check_all(session, &shapes.map(|s| Case::noise(2, 3, s, 8).causal()), 1e-5);
}

#[test]
fn t05_a_cache_that_holds_nan_past_its_length_does_not_leak() {
    let Some(session) = session() else { return };
    let v: &[f32] = &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
    for causal in [false, true] {
        let mut case = Case::uniform(1, &[v, v]).lengths(&[1, 3]).poison_padding();
        case.causal = causal;
        case.gives(session, &[1.0, 2.0]);
    }
    let lengths = [[0, 70], [1, 69], [33, 0], [64, 7]];
    let all = lengths.map(|l| Case::noise(2, 2, [5, 70], 12).lengths(&l).poison_padding());
    check_all(session, &[all.clone().map(Case::causal), all].concat(), 1e-5);
}

#[test]
fn t08_right_padded_prompts_of_different_lengths() {
    let Some(session) = session() else { return };
    let v: &[f32] = &[1.0, 2.0, 3.0];
    let case = Case::uniform(3, &[v, v]).lengths(&[1, 3]).causal().poison_padding();
    case.gives(session, &[1.0, 1.0, 1.0, 1.0, 1.5, 2.0]);
    let long = Case::noise(3, 2, [40, 40], 16).lengths(&[40, 1, 17]).causal().poison_padding();
    long.check(session, 1e-5);
}

#[test]
fn t10_capacity_is_not_length() {
    let Some(session) = session() else { return };
    let exact = Case::noise(1, 2, [3, 5], 16).lengths(&[5]);
    let mut roomy = exact.clone();
    for tensor in [&mut roomy.k, &mut roomy.v] {
        let mut values = tensor.to_f64();
        values.resize(1024 * 32, f64::NAN);
        *tensor = Tensor::from_f64(TensorType::new(DType::F32, [1, 1024, 32]), &values);
    }
    let cases = [exact.clone(), roomy.clone(), exact.causal(), roomy.causal()];
    check_all(session, &cases, 1e-5);
    for options in both(session) {
        let out = run(session, &graph(&cases), &Named::new(), &inputs(&cases), &options);
        for (exact, roomy) in [("out", "out1"), ("lse", "lse1"), ("out2", "out3"), ("lse2", "lse3")] {
            assert_numbers(roomy, &out[roomy].to_f64(), &out[exact].to_f64(), 1e-6);
        }
    }
}

#[test]
fn t11_many_tokens_within_little_workgroup_memory() {
    let Some(session) = session() else { return };
    // each query stands alone: the reference computes some of them
    const PICKED: [usize; 4] = [0, 63, 700, 1369];
    let case = Case::noise(1, 6, [1370, 1370], 64);
    let pick =
        |rows: &[f64]| -> Vec<f64> { PICKED.iter().flat_map(|i| rows[i * 384..(i + 1) * 384].to_vec()).collect() };
    let mut few = case.clone();
    few.q = Tensor::from_f64(TensorType::new(DType::F32, [1, PICKED.len(), 384]), &pick(&case.q.to_f64()));
    let expected = evaluate(&few.graph(), &Named::new(), &few.inputs()).unwrap();
    let limits = |bytes| DeviceCaps { cpu: false, workgroup_bytes: bytes, ..session.caps().clone() };
    let under = |limits| CompileOptions { limits: Some(limits), ..poisoned(Mode::Fused) };
    let out = run(session, &case.graph(), &Named::new(), &case.inputs(), &under(limits(32 << 10)));
    assert_numbers("32 KiB", &pick(&out["out"].to_f64()), &expected["out"].data, 1e-5);
    // half of that with fewer tokens
    assert!(block(&few, &limits(16 << 10)).is_some(), "a tile fits");
    let out = run(session, &few.graph(), &Named::new(), &few.inputs(), &under(limits(16 << 10)));
    assert_numbers("16 KiB", &out["out"].to_f64(), &expected["out"].data, 1e-5);
    // less and less memory: smaller blocks, at last none
    let sizes = [48, 32, 16, 8, 4, 1].map(|kib| {
        let limits = DeviceCaps { workgroup_bytes: kib << 10, ..DeviceCaps::PORTABLE };
        block(&case, &limits).map_or(0, |(q, k)| q * k)
    });
    assert!(sizes.is_sorted_by(|a, b| a >= b), "{sizes:?}");
    assert_eq!(sizes[5], 0);
}

#[test]
fn t12_scores_past_the_largest_f16_are_kept_in_f32() {
    let Some(session) = session() else { return };
    if !has_f16(session) {
        return;
    }
    let constant = |rows| fill_as(DType::F16, &[1, rows, 64], |_| 32.0);
    let v = fill_as(DType::F16, &[1, 6, 64], |i| (i / 64) as f64);
    let (q, k) = (constant(3), constant(6));
    let mut case = Case { heads: 1, scale: 1.0, causal: false, q, k, v, mask: None, lengths: None };
    for scale in [1.0, 0.125] {
        case.scale = scale;
        for options in both(session) {
            let out = run(session, &case.graph(), &Named::new(), &case.inputs(), &options);
            assert_eq!(out["out"].to_f64(), [2.5; 192]);
        }
        case.check(session, 1e-6);
    }
}

#[test]
fn head_sizes_from_3_to_128_even_and_odd() {
    let Some(session) = session() else { return };
    let cases = [3, 5, 8, 20, 100, 128].map(|d| Case::noise(2, 2, [17, 23], d).causal());
    check_all(session, &cases, 1e-5);
}

#[test]
fn f16_with_masks_lengths_and_causality() {
    let Some(session) = session() else { return };
    if !has_f16(session) {
        return;
    }
    let cases = [5, 12].map(|d| {
        let case = Case::noise(2, 2, [19, 21], d).mask(&[2, 1, 21], |i| noise(5, i)).lengths(&[21, 8]).causal();
        case.cast(DType::F16).poison_padding()
    });
    check_all(session, &cases, 2e-3);
}

#[test]
fn numbers_of_queries_and_keys_around_the_blocks() {
    let Some(session) = session() else { return };
    let shapes = [[1, 1], [1, 257], [15, 16], [16, 17], [31, 33], [33, 31], [64, 64], [65, 32], [257, 1], [2, 5]];
    check_all(session, &shapes.map(|s| Case::noise(1, 1, s, 8)), 1e-5);
}

#[test]
fn additive_masks_are_stretched_to_batch_heads_queries_and_keys() {
    let Some(session) = session() else { return };
    let shapes: [&[usize]; 9] =
        [&[], &[7], &[6, 1], &[6, 7], &[3, 1, 1], &[3, 6, 7], &[2, 1, 1, 7], &[2, 1, 6, 7], &[2, 3, 6, 7]];
    let cases = shapes.map(|dims| {
        // a key in seven is hidden
        let value = |i: usize| if dims.len() > 1 && i % 7 == 3 { f64::NEG_INFINITY } else { 3.0 * noise(6, i) };
        Case::noise(2, 3, [6, 7], 8).mask(dims, value)
    });
    check_all(session, &cases, 1e-5);
}

#[test]
fn masks_lengths_and_causality_together() {
    let Some(session) = session() else { return };
    let cases = [([9, 20], [20, 11]), ([20, 9], [9, 4]), ([33, 40], [0, 33])].map(|(shape, lengths)| {
        let hidden = |i: usize| if i % 11 == 5 { f64::NEG_INFINITY } else { noise(7, i) };
        let dims = [2, 1, shape[0], shape[1]];
        Case::noise(2, 2, shape, 20).mask(&dims, hidden).lengths(&lengths).causal().poison_padding()
    });
    check_all(session, &cases, 1e-5);
}

/// Causal attention of 19 positions over the thirds of one input.
fn packed(entries: usize, heads: usize, width: usize) -> (Graph, Named) {
    let dims = [entries, 19, 3 * width];
    let mut b = Builder::new();
    let qkv = b.input("qkv", TensorType::new(DType::F32, dims)).unwrap();
    let [q, k, v] = [0, 1, 2].map(|i| b.slice(qkv, 2, i * width, width).unwrap());
    let out = b.attention(q, k, v, heads, 0.3, true, None, None).unwrap();
    b.output("out", out).unwrap();
    (b.finish().unwrap(), device::named([("qkv", fill_as(DType::F32, &dims, |i| noise(8, i)))]))
}

#[test]
fn heads_cut_out_of_a_packed_projection_need_no_copy() {
    let Some(session) = session() else { return };
    let (graph, inputs) = packed(2, 3, 36);
    check(session, &graph, &Named::new(), &inputs, Mode::Fused, 1e-5);
    let compiled = compile(&graph, session.caps(), &CompileOptions::default()).unwrap();
    assert_eq!(compiled.recording.dispatches.len(), 1, "{}", compiled.recording);
}

#[test]
fn a_batch_over_the_binding_limit_is_cut_at_its_entries() {
    let Some(session) = session() else { return };
    let case = Case::noise(5, 2, [20, 20], 12).mask(&[5, 1, 20, 20], |i| noise(9, i)).lengths(&[20, 3, 0, 19, 7]);
    let case = case.causal().poison_padding();
    let whole = 5 * 20 * 24 * 4;
    let expected = evaluate(&case.graph(), &Named::new(), &case.inputs()).unwrap();
    for cpu in [true, false] {
        let limits = DeviceCaps { cpu, max_binding_bytes: whole / 2, ..session.caps().clone() };
        let options = CompileOptions { limits: Some(limits), ..poisoned(Mode::Fused) };
        let program = session.compile(&case.graph(), &Named::new(), &options).unwrap();
        assert_eq!(program.dispatches(), 5);
        let out = program.run(&refs(&case.inputs())).unwrap();
        device::assert_close("cut", &out, &expected, 1e-5);
    }
    let limits = DeviceCaps { max_binding_bytes: 1024, ..DeviceCaps::PORTABLE };
    let error = compile(&case.graph(), &limits, &CompileOptions::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "attention \"attention\" (tensor \"q\"): attention: operand 0: q wants a binding of 1920 bytes, but the \
         device's limit is 1024; use a smaller size or another adapter"
    );
}

#[test]
fn packed_operands_whose_parts_fit_a_binding_are_copied_apart() {
    let Some(session) = session() else { return };
    let (graph, inputs) = packed(1, 2, 12);
    let expected = evaluate(&graph, &Named::new(), &inputs).unwrap();
    for cpu in [true, false] {
        // a part has 912 bytes, and its window in what is packed 2,640
        let limits = DeviceCaps { cpu, max_binding_bytes: 1536, ..session.caps().clone() };
        let options = CompileOptions { limits: Some(limits), ..poisoned(Mode::Fused) };
        let program = session.compile(&graph, &Named::new(), &options).unwrap_or_else(|e| panic!("{e}"));
        let out = program.run(&refs(&inputs)).unwrap();
        device::assert_close("copied", &out, &expected, 1e-5);
    }
}

#[test]
fn checked_kernels_give_the_same() {
    let Some(session) = session() else { return };
    let case = Case::noise(2, 2, [33, 40], 20).mask(&[40], |i| noise(7, i)).lengths(&[40, 5]).causal();
    for options in both(session) {
        let unchecked = run(session, &case.graph(), &Named::new(), &case.inputs(), &options);
        let checked = CompileOptions { checked: true, ..options };
        assert_eq!(run(session, &case.graph(), &Named::new(), &case.inputs(), &checked), unchecked);
    }
}
