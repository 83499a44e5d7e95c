//! In: two small models; out: the text of every stage on their way, and of some kernels, kept beside this file under
//! snapshots/. Needs no adapter.
//!
//! What changes here is meant: `INSTA_UPDATE=always cargo test --test stages` writes it anew, to be read as a
//! difference before it is committed.

use kiln::caps::DeviceCaps;
use kiln::model::{Dnn, DnnConfig, Gptlite, GptliteConfig};
use kiln::session::{Compiled, compile};
use kiln::{Builder, CompileOptions, DType, Graph, Mode, TensorType};
use std::fmt::Write;

/// One layer of width 8 with 2 heads, 5 tokens, 3 of 4 positions.
fn gptlite() -> Graph {
    Gptlite::new(GptliteConfig::new(5, 1, 8, 2, 4)).build(1, 3).unwrap()
}

/// 3 layers, no two sizes alike.
fn dnn() -> Graph {
    Dnn::new(DnnConfig { in_size: 6, width: 8, depth: 3, out_size: 5 }).build(2).unwrap()
}

fn portable(graph: &Graph, mode: Mode) -> Compiled {
    compile(graph, &DeviceCaps::PORTABLE, &CompileOptions::mode(mode)).unwrap()
}

/// Every stage under a heading, in the order of the data.
fn stages(c: &Compiled) -> String {
    let stages = [
        ("graph", c.graph.to_string()),
        ("report", c.report.to_string()),
        ("selected", c.selected.to_string()),
        ("plan", places(c)),
        ("recording", c.recording.to_string()),
    ];
    stages.iter().map(|(title, text)| format!("== {title}\n{text}\n")).collect()
}

/// The plan in words, then where each tensor lies and from which launch to which it is alive.
fn places(Compiled { selected, plan, .. }: &Compiled) -> String {
    let mut text = format!("{plan}\n");
    for (i, tensor) in selected.tensors.iter().enumerate() {
        let place = plan.slots[i].map_or(format!("{:?}", tensor.kind), |slot| format!("slot {}", slot.0));
        let life = plan.lifetimes[i].map_or("never".into(), |l| format!("{}..={}", l.first, l.last));
        writeln!(text, "t{i}: {place}, alive {life}").unwrap();
    }
    text
}

/// The first kernel of a name, with what it binds and is given.
fn kernel(c: &Compiled, name: &str) -> String {
    let kernel = c.recording.kernels.iter().find(|k| k.name() == name).unwrap();
    let key = &kernel.key;
    format!("// bindings {:?}\n// parameters {}\n{}", key.bindings(), key.params().join(" "), kernel.source())
}

macro_rules! snapshot {
    ($name:expr, $text:expr) => {
        insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false }, {
            insta::assert_snapshot!($name, $text)
        })
    };
}

#[test]
fn gptlite_recorded() {
    snapshot!("gptlite_recorded", stages(&portable(&gptlite(), Mode::Recorded)));
}

#[test]
fn gptlite_fused() {
    snapshot!("gptlite_fused", stages(&portable(&gptlite(), Mode::Fused)));
}

#[test]
fn dnn_recorded() {
    snapshot!("dnn_recorded", stages(&portable(&dnn(), Mode::Recorded)));
}

#[test]
fn dnn_fused() {
    snapshot!("dnn_fused", stages(&portable(&dnn(), Mode::Fused)));
}

#[test]
fn eager_differs_from_recorded_in_submits_alone() {
    for graph in [gptlite(), dnn()] {
        assert_eq!(stages(&portable(&graph, Mode::Eager)), stages(&portable(&graph, Mode::Recorded)));
    }
}

#[test]
fn an_elementwise_chain_as_wgsl() {
    let mut b = Builder::new();
    let x = b.input("x", TensorType::new(DType::F32, [3, 8])).unwrap();
    let row = b.input("row", TensorType::new(DType::F32, [8])).unwrap();
    let column = b.input("column", TensorType::new(DType::F32, [3, 1])).unwrap();
    let y = b.mul(x, row).unwrap();
    let y = b.add(y, column).unwrap();
    let y = b.gelu_tanh(y).unwrap();
    b.output("y", y).unwrap();
    let graph = b.finish().unwrap();
    snapshot!("elementwise", kernel(&portable(&graph, Mode::Fused), "elementwise"));
}

#[test]
fn a_matmul_with_its_epilogue_as_wgsl() {
    snapshot!("matmul", kernel(&portable(&dnn(), Mode::Fused), "matmul"));
}

#[test]
fn an_attention_as_wgsl() {
    snapshot!("attention", kernel(&portable(&gptlite(), Mode::Fused), "attention"));
}
