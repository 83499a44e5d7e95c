//! Gradients of attention, and attention that drops weights.

use crate::common::{BOTH, EVERY, F16, F32, Named, Setup, check, close, each, f16, random, session, tensor};
use kiln::caps::DeviceCaps;
use kiln::graph::{
    AttentionAttrs, DType, Disposition, DropoutAttrs, Graph, IndexBound, Indexed, NodeId, Op, TensorType, ValueId,
};
use kiln::reference::evaluate;
use kiln::session::CompileOptions;
use kiln::tensor::Tensor;

/// An attention with what is optional about it.
#[derive(Clone)]
pub struct Form {
    dtype: DType,
    batch: usize,
    heads: usize,
    size: usize,
    queries: usize,
    keys: usize,
    causal: bool,
    mask: Option<Vec<usize>>,
    lengths: Option<Vec<i32>>,
    dropout: Option<f32>,
}

pub fn form(batch: usize, heads: usize, size: usize, queries: usize, keys: usize) -> Form {
    let dtype = DType::F32;
    Form { dtype, batch, heads, size, queries, keys, causal: false, mask: None, lengths: None, dropout: None }
}

impl Form {
    pub fn causal(self) -> Form {
        Form { causal: true, ..self }
    }

    /// A mask of these sizes, of which one element in seven is −∞.
    pub fn mask(self, dims: &[usize]) -> Form {
        Form { mask: Some(dims.to_vec()), ..self }
    }

    /// Keys and values past the lengths are NaN.
    pub fn lengths(self, lengths: &[i32]) -> Form {
        Form { lengths: Some(lengths.to_vec()), ..self }
    }

    pub fn dropout(self, p: f32) -> Form {
        Form { dropout: Some(p), ..self }
    }

    pub fn f16(self) -> Form {
        Form { dtype: DType::F16, ..self }
    }

    pub fn attrs(&self) -> AttentionAttrs {
        AttentionAttrs {
            heads: self.heads,
            scale: (1.5 / (self.size as f32).sqrt()).into(),
            causal: self.causal,
            mask: self.mask.is_some(),
            lengths: self.lengths.is_some(),
            dropout: self.dropout.map(|p| DropoutAttrs { p: p.into(), site: u32::MAX - 1 }),
        }
    }

    /// q, k, v, mask, lengths and counter as there are, then dout.
    fn values(&self) -> Vec<Tensor> {
        let width = self.heads * self.size;
        let rows = |n, seed| random(self.dtype, &[self.batch, n, width], seed);
        let mut all = vec![rows(self.queries, 1), rows(self.keys, 2), rows(self.keys, 3)];
        if let Some(lengths) = &self.lengths {
            for padded in &mut all[1..3] {
                let mut values = padded.to_f64();
                for (b, n) in lengths.iter().enumerate() {
                    values[(b * self.keys + *n as usize) * width..(b + 1) * self.keys * width].fill(f64::NAN);
                }
                *padded = Tensor::from_f64(padded.ty().clone(), &values);
            }
        }
        if let Some(dims) = &self.mask {
            let mut values = random(self.dtype, dims, 4).to_f64();
            values.iter_mut().skip(2).step_by(7).for_each(|m| *m = f64::NEG_INFINITY);
            all.push(tensor(self.dtype, dims, &values));
        }
        all.extend(self.lengths.as_ref().map(|l| Tensor::i32([l.len()], l)));
        all.extend(self.dropout.map(|_| tensor(DType::U32, &[3], &[9e8, 4e9, 17.0])));
        all.push(rows(self.queries, 5));
        all
    }
}

/// Attentions side by side with their gradients.
#[derive(Default)]
pub struct Cases {
    pub graph: Graph,
    pub inputs: Named,
}

impl Cases {
    pub fn input(&mut self, value: Tensor) -> ValueId {
        let name = format!("x{}", self.inputs.len());
        let id = self.graph.push_input(value.ty().clone(), &name);
        self.inputs.insert(name, value);
        id.into()
    }

    fn output(&mut self, name: impl Into<String>, node: NodeId, output: usize) {
        self.graph.push_output(name, ValueId { node, output }, Disposition::Read).expect("names differ");
    }

    /// Outputs `N out`, `N lse`, `N dq`, `N dk`, `N dv` of an attention over these operands.
    pub fn over(&mut self, name: &str, attrs: AttentionAttrs, mut operands: Vec<ValueId>, dout: ValueId) {
        let push =
            |g: &mut Graph, op, inputs| g.push(op, inputs, "attention").unwrap_or_else(|e| panic!("{name}: {e}"));
        let node = push(&mut self.graph, Op::Attention(attrs), operands.clone());
        operands.extend([ValueId { node, output: 0 }, ValueId { node, output: 1 }, dout]);
        let grad = push(&mut self.graph, Op::AttentionGrad(attrs), operands);
        for (i, what) in ["out", "lse"].into_iter().enumerate() {
            self.output(format!("{name} {what}"), node, i);
        }
        for (i, what) in ["dq", "dk", "dv"].into_iter().enumerate() {
            self.output(format!("{name} {what}"), grad, i);
        }
    }

    fn add(&mut self, name: &str, form: &Form) {
        let mut operands: Vec<ValueId> = form.values().into_iter().map(|v| self.input(v)).collect();
        let dout = operands.pop().expect("the last is dout");
        self.over(name, form.attrs(), operands, dout);
    }

    pub fn of(forms: &[Form]) -> Cases {
        let mut cases = Cases::default();
        for (i, form) in forms.iter().enumerate() {
            cases.add(&i.to_string(), form);
        }
        cases
    }

    fn check(&self, tolerance: f64, setups: &[Setup]) {
        self.graph.verify().unwrap_or_else(|e| panic!("{e}"));
        check(&self.graph, &Named::new(), &self.inputs, tolerance, setups);
    }
}

fn check_forms(forms: &[Form]) {
    let tolerance = if forms[0].dtype == DType::F16 { F16 } else { F32 };
    Cases::of(forms).check(tolerance, &BOTH);
}

#[test]
fn numbers_of_queries_and_keys_around_the_blocks() {
    let sizes = [(1, 1), (1, 130), (130, 1), (5, 5), (31, 33), (33, 31), (65, 65), (5, 130), (130, 65)];
    check_forms(&sizes.map(|(q, k)| form(1, 2, 16, q, k)));
}

#[test]
fn causal_is_aligned_at_the_bottom_right() {
    let sizes = [(1, 1), (5, 31), (31, 5), (65, 130), (130, 65), (33, 33)];
    check_forms(&sizes.map(|(q, k)| form(2, 1, 16, q, k).causal()));
}

#[test]
fn head_sizes_up_to_128() {
    for (size, heads, keys) in [(8, 5, 65), (12, 2, 31), (64, 1, 40), (128, 1, 17)] {
        check_forms(&[form(1, heads, size, 33, keys).causal()]);
    }
    // not in fours
    check_forms(&[5, 10].map(|size| form(2, 3, size, 33, 31)));
}

#[test]
fn masks_are_stretched_and_hide() {
    let dims: [&[usize]; 4] = [&[33], &[31, 1], &[2, 1, 33], &[2, 2, 31, 33]];
    let mut forms = dims.map(|d| form(2, 2, 8, 31, 33).mask(d)).to_vec();
    forms.push(form(2, 2, 8, 31, 33).mask(&[31, 33]).causal());
    check_forms(&forms);
}

#[test]
fn what_lies_past_a_length_has_no_gradient() {
    let cases = [(33, 70, [70, 0, 1, 33]), (70, 70, [70, 5, 64, 0]), (1, 40, [40, 3, 0, 32])];
    for causal in [false, true] {
        let forms = cases.map(|(q, k, lengths)| Form { causal, ..form(4, 2, 12, q, k).lengths(&lengths) });
        check_forms(&forms);
        let cases = Cases::of(&forms);
        each(&cases.graph, &Named::new(), &cases.inputs, &BOTH, |setup, program, given| {
            let out = program.run(given).unwrap_or_else(|e| panic!("{e} ({setup})"));
            for (i, form) in forms.iter().enumerate() {
                let (width, lengths) = (form.heads * form.size, form.lengths.clone().expect("has lengths"));
                for (name, (b, n)) in ["dk", "dv"].iter().flat_map(|w| lengths.iter().enumerate().map(move |l| (w, l)))
                {
                    let all = out[&format!("{i} {name}")].to_f64();
                    let past = &all[(b * form.keys + *n as usize) * width..(b + 1) * form.keys * width];
                    assert!(past.iter().all(|x| *x == 0.0), "{name} of entry {b} ({setup})");
                }
            }
        });
    }
}

#[test]
fn dropped_weights() {
    // rows that are whole groups of four, and rows that are not
    for keys in [&[32, 68][..], &[33, 31, 5, 66]] {
        let forms: Vec<Form> = keys.iter().map(|k| form(2, 3, 8, 33, *k).dropout(0.3)).collect();
        check_forms(&forms);
        // fewer rows an invocation
        check_forms(&[form(1, 2, 36, 40, keys[0]).causal().dropout(0.1)]);
    }
    check_forms(&[
        form(1, 2, 8, 7, 5).dropout(0.0),
        form(1, 2, 8, 7, 5).dropout(0.99),
        form(2, 1, 8, 7, 8).dropout(0.5),
    ]);
}

#[test]
fn everything_together_binds_eight_buffers() {
    let all = |f: Form| f.mask(&[2, 1, 33, 40]).lengths(&[40, 17]).causal().dropout(0.25);
    check_forms(&[all(form(2, 2, 16, 33, 40))]);
    let cases = Cases::of(&[all(form(2, 2, 16, 33, 40))]);
    // the lengths are known as such
    let bounds = cases.graph.index_bounds();
    let reader = "attention".to_owned();
    assert_eq!(bounds, [(NodeId(4), IndexBound { count: 41, of: Indexed::Rows, reader, elements: None })]);
    let Some(session) = session() else { return };
    let limits = DeviceCaps { max_storage_buffers: 8, ..session.caps().clone() };
    let options = CompileOptions { limits: Some(limits), ..CompileOptions::default() };
    session.compile(&cases.graph, &Named::new(), &options).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn in_f16() {
    if !f16() {
        return;
    }
    check_forms(&[form(2, 2, 16, 33, 65).f16().causal(), form(1, 3, 16, 31, 33).f16().causal()]);
    let all = form(2, 2, 10, 33, 41).f16().mask(&[33, 41]).lengths(&[41, 17]).causal().dropout(0.25);
    check_forms(&[all]);
}

/// Gradients of an attention in one concat.
fn concat(cases: &mut Cases, name: &str, form: Form, axis: usize, order: &[usize]) {
    let mut inputs: Vec<ValueId> = form.values().into_iter().map(|v| cases.input(v)).collect();
    let dout = inputs.pop().expect("the last is dout");
    let node = cases.graph.push(Op::Attention(form.attrs()), inputs.clone(), "attention").expect(name);
    inputs.extend([ValueId { node, output: 0 }, ValueId { node, output: 1 }, dout]);
    let node = cases.graph.push(Op::AttentionGrad(form.attrs()), inputs, "attention").expect(name);
    let parts = order.iter().map(|output| ValueId { node, output: *output }).collect();
    let all = cases.graph.push(Op::Concat(axis), parts, "concat").expect(name);
    cases.output(name, all, 0);
}

#[test]
fn results_go_where_a_concat_has_them() {
    let mut cases = Cases::default();
    concat(&mut cases, "packed", form(2, 2, 8, 33, 33).causal(), 2, &[0, 1, 2]);
    concat(&mut cases, "dv first", form(2, 2, 8, 20, 33), 2, &[2, 1]);
    concat(&mut cases, "one after the other", form(1, 3, 5, 31, 33).causal(), 1, &[1, 0, 2]);
    concat(&mut cases, "entries", form(2, 1, 10, 9, 9).dropout(0.2), 0, &[0, 2, 1]);
    concat(&mut cases, "dq alone", form(2, 2, 8, 9, 9).mask(&[9, 9]), 2, &[0, 0]);
    cases.check(F32, &BOTH);
    // dq is copied there: were it written there, its launch would wait for the other
    each(&cases.graph, &Named::new(), &cases.inputs, &BOTH, |setup, program, _| {
        let copies = program.compiled().selected.steps.iter().filter(|s| s.name == "concat (copy)").count();
        assert_eq!(copies, 1 + 1 + 1 + 2, "{setup}");
    });
}

#[test]
fn operands_that_are_views() {
    let mut cases = Cases::default();
    // q, k and v side by side, as one linear makes them
    let qkv = cases.input(random(DType::F32, &[2, 33, 48], 1));
    let dout = cases.input(random(DType::F32, &[2, 33, 48], 2));
    let slice = |g: &mut Graph, of, start, len| -> ValueId {
        g.push(Op::Slice { axis: 2, start, len }, vec![of], "slice").expect("within").into()
    };
    let attrs = |heads| AttentionAttrs { heads, ..form(1, 1, 8, 1, 1).causal().attrs() };
    for (name, starts, len, heads) in [("packed", [0, 16, 32], 16, 2), ("at odd offsets", [1, 15, 30], 15, 3)] {
        let operands = starts.map(|start| slice(&mut cases.graph, qkv, start, len)).to_vec();
        let dout = slice(&mut cases.graph, dout, 8, len);
        cases.over(name, attrs(heads), operands, dout);
    }
    let turn = |g: &mut Graph, of, perm: &[usize]| -> ValueId {
        g.push(Op::Permute(perm.to_vec()), vec![of], "permute").expect("three dimensions").into()
    };
    let (strided, turned) = (turn(&mut cases.graph, qkv, &[0, 2, 1]), turn(&mut cases.graph, dout, &[1, 0, 2]));
    let d = turn(&mut cases.graph, dout, &[0, 2, 1]);
    cases.over("strided", attrs(3), vec![strided; 3], d);
    cases.over("turned", attrs(2), vec![turned; 3], turned);
    cases.check(F32, &BOTH);
}

#[test]
fn without_queries_or_keys() {
    Cases::of(&[form(2, 2, 4, 0, 3), form(2, 2, 4, 3, 0), form(0, 2, 4, 3, 3)]).check(F32, &BOTH);
}

#[test]
fn only_the_gradients_that_are_read_are_made() {
    let Some(session) = session() else { return };
    for (outputs, dispatches) in [(&[0][..], 2), (&[1], 2), (&[2], 2), (&[0, 2], 3), (&[0, 1, 2], 3)] {
        let mut all = Cases::of(&[form(1, 2, 8, 9, 12)]);
        let grad = all.graph.nodes().find(|(_, n)| matches!(n.op, Op::AttentionGrad(_))).expect("one").0;
        let mut cases = Cases::default();
        std::mem::swap(&mut cases.inputs, &mut all.inputs);
        for (_, node) in all.graph.nodes() {
            match node.op {
                Op::Input => {
                    cases.graph.push_input(node.outputs[0].clone(), node.name.clone());
                }
                _ => {
                    cases.graph.push(node.op.clone(), node.inputs.clone(), node.name.clone()).expect("as before");
                }
            }
        }
        for o in outputs {
            cases.output(o.to_string(), grad, *o);
        }
        cases.check(F32, &BOTH);
        let program = session.compile(&cases.graph, &Named::new(), &CompileOptions::default());
        // and the attention itself
        assert_eq!(program.expect("fits").dispatches(), dispatches + 1, "{outputs:?}");
    }
}

#[test]
fn every_mode_gives_the_same_bits_twice() {
    let cases = Cases::of(&[form(2, 2, 8, 40, 37).causal().dropout(0.2)]);
    cases.check(F32, &EVERY);
    each(&cases.graph, &Named::new(), &cases.inputs, &EVERY, |setup, program, given| {
        let runs = [0, 1].map(|_| program.run(given).unwrap_or_else(|e| panic!("{e}")));
        assert_eq!(runs[0], runs[1], "{setup}");
    });
}

#[test]
fn a_batch_over_the_binding_limit_is_cut_at_its_entries() {
    let Some(session) = session() else { return };
    let form = form(3, 2, 8, 20, 22).mask(&[3, 1, 20, 22]).lengths(&[22, 3, 0]).causal().dropout(0.3);
    let cases = Cases::of(&[form]);
    let want = evaluate(&cases.graph, &Named::new(), &cases.inputs).unwrap_or_else(|e| panic!("{e}"));
    let given: Vec<(&str, &Tensor)> = cases.inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
    for cpu in [true, false] {
        let limits = DeviceCaps { cpu, max_binding_bytes: 20 * 22 * 4 * 2, ..session.caps().clone() };
        let options = CompileOptions { limits: Some(limits), poison: true, ..CompileOptions::default() };
        let program = session.compile(&cases.graph, &Named::new(), &options).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(program.dispatches(), 4 * 3);
        let got = program.run(&given).unwrap_or_else(|e| panic!("{e}"));
        for (name, want) in &want {
            close(name, &got[name].to_f64(), &want.data, 1e-5);
        }
    }
}

#[test]
fn results_that_lie_further_apart_than_a_binding_are_copied_to_their_concat() {
    let Some(session) = session() else { return };
    let mut cases = Cases::default();
    // dk and dv have 2112 bytes each
    concat(&mut cases, "entries", form(3, 1, 8, 20, 22), 0, &[1, 2]);
    let want = evaluate(&cases.graph, &Named::new(), &cases.inputs).unwrap_or_else(|e| panic!("{e}"));
    let given: Vec<(&str, &Tensor)> = cases.inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
    for cpu in [true, false] {
        let limits = DeviceCaps { cpu, max_binding_bytes: 2304, ..session.caps().clone() };
        let options = CompileOptions { limits: Some(limits), poison: true, ..CompileOptions::default() };
        let program = session.compile(&cases.graph, &Named::new(), &options).unwrap_or_else(|e| panic!("{e}"));
        let got = program.run(&given).unwrap_or_else(|e| panic!("{e}"));
        for (name, want) in &want {
            close(name, &got[name].to_f64(), &want.data, 1e-5);
        }
    }
}

#[test]
fn little_workgroup_memory_takes_smaller_tiles() {
    let Some(session) = session() else { return };
    let cases = Cases::of(&[form(1, 1, 32, 70, 66).causal()]);
    let want = evaluate(&cases.graph, &Named::new(), &cases.inputs).unwrap_or_else(|e| panic!("{e}"));
    let given: Vec<(&str, &Tensor)> = cases.inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
    for kib in [48, 16, 6, 2] {
        let limits = DeviceCaps { cpu: false, workgroup_bytes: kib << 10, ..session.caps().clone() };
        let options = CompileOptions { limits: Some(limits), poison: true, ..CompileOptions::default() };
        let program = session.compile(&cases.graph, &Named::new(), &options).unwrap_or_else(|e| panic!("{e}"));
        let got = program.run(&given).unwrap_or_else(|e| panic!("{e}"));
        for (name, want) in &want {
            close(&format!("{name} in {kib} KiB"), &got[name].to_f64(), &want.data, 1e-5);
        }
    }
}

/// A query that sees no key, and whose dout is NaN, has gradient 0 and leaves all others alone; so does one that sees
/// some keys, for those that it does not see.
#[test]
fn t01_a_row_that_sees_no_key_has_no_gradient_and_no_other_is_touched() {
    let (sq, sk, width) = (4, 6, 8);
    let mut cases = Cases::default();
    let [q, k, v] = [(sq, 1), (sk, 2), (sk, 3)].map(|(n, seed)| cases.input(random(DType::F32, &[1, n, width], seed)));
    let mut mask = vec![0.0; sq * sk];
    mask[sk..2 * sk].fill(f64::NEG_INFINITY);
    mask[2 * sk + 1..3 * sk].fill(f64::NEG_INFINITY); // query 2 sees key 0 alone
    let mask = cases.input(tensor(DType::F32, &[sq, sk], &mask));
    let mut dout = random(DType::F32, &[1, sq, width], 4).to_f64();
    dout[width..2 * width].fill(f64::NAN);
    let hidden = cases.input(tensor(DType::F32, &[1, sq, width], &dout));
    dout[width..2 * width].fill(1.0);
    dout[2 * width..3 * width].fill(f64::NAN);
    let partly = cases.input(tensor(DType::F32, &[1, sq, width], &dout));
    let attrs = AttentionAttrs { mask: true, ..form(1, 2, 4, sq, sk).attrs() };
    let attrs = AttentionAttrs { heads: 2, ..attrs };
    cases.over("hidden", attrs, vec![q, k, v, mask], hidden);
    cases.over("partly", attrs, vec![q, k, v, mask], partly);
    cases.check(F32, &BOTH);
    each(&cases.graph, &Named::new(), &cases.inputs, &BOTH, |setup, program, given| {
        let out = program.run(given).unwrap_or_else(|e| panic!("{e}"));
        for name in ["hidden dq", "hidden dk", "hidden dv"] {
            assert!(out[name].to_f64().iter().all(|x| x.is_finite()), "{name} ({setup})");
        }
        assert_eq!(out["hidden dq"].to_f64()[width..2 * width], [0.0; 8], "{setup}");
        for name in ["partly dk", "partly dv"] {
            assert!(out[name].to_f64()[width..].iter().all(|x| x.is_finite()), "{name} ({setup})");
        }
    });
}

#[test]
fn t17_the_gradient_of_a_causal_attention_is_that_of_finite_differences() {
    let (queries, size, heads, step) = (5, 4, 2, 1e-3);
    let form = form(1, heads, size, queries, queries).causal();
    let values = form.values();
    let forward = {
        let mut cases = Cases::default();
        let operands: Vec<ValueId> = values[..3].iter().map(|v| cases.input(v.clone())).collect();
        let node = cases.graph.push(Op::Attention(form.attrs()), operands, "attention").expect("fits");
        cases.output("out", node, 0);
        cases
    };
    let dout = values[3].to_f64();
    let cases = Cases::of(&[form]);
    for setup in BOTH {
        let mut grads = Vec::new();
        each(&cases.graph, &Named::new(), &cases.inputs, &[setup], |_, program, given| {
            let out = program.run(given).unwrap_or_else(|e| panic!("{e}"));
            grads.extend(["0 dq", "0 dk", "0 dv"].map(|name| out[name].to_f64()));
        });
        each(&forward.graph, &Named::new(), &forward.inputs, &[setup], |_, program, _| {
            let loss = |given: &[Tensor]| -> f64 {
                let names = ["x0", "x1", "x2"];
                let given: Vec<(&str, &Tensor)> = names.into_iter().zip(given).collect();
                let out = program.run(&given).unwrap_or_else(|e| panic!("{e}"));
                out["out"].to_f64().iter().zip(&dout).map(|(a, b)| a * b).sum()
            };
            for (which, grad) in grads.iter().enumerate() {
                let (mut apart, mut norm) = (0.0, 0.0);
                for (i, g) in grad.iter().enumerate() {
                    let moved = |by: f64| {
                        let mut given = values[..3].to_vec();
                        let mut x = given[which].to_f64();
                        x[i] += by;
                        given[which] = Tensor::from_f64(TensorType::new(DType::F32, [1, queries, heads * size]), &x);
                        loss(&given)
                    };
                    let slope = (moved(step) - moved(-step)) / (2.0 * step);
                    apart += (slope - g) * (slope - g);
                    norm += slope * slope;
                }
                assert!(apart.sqrt() < 1e-2 * norm.sqrt(), "{which}: {apart} of {norm} ({setup})");
            }
        });
    }
}
