//! Prints, as the table of docs/precision.md, how far products and attention of each precision are from f64 on this
//! machine's adapter: `‖out − ref‖ / ‖ref‖`, over 64 sampled rows where there are more.

use clap::Parser;
use kiln::MatmulPrecision;
use kiln::gpu::AdapterChoice;
use kiln::graph::{Builder, DType, Disposition, Graph, Op, TensorType, ValueId};
use kiln::reference::evaluate;
use kiln::session::{CompileOptions, Session};
use kiln::tensor::Tensor;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "Prints the errors of each op and precision as a table")]
struct Args {
    /// M, N and K of the large product, and rows of all else.
    #[arg(long, default_value_t = 4096)]
    size: usize,
    /// Part of the adapter's name.
    #[arg(long)]
    adapter: Option<String>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

type Result<T> = std::result::Result<T, Box<dyn Error>>;
type Named = BTreeMap<String, Tensor>;

/// How numbers are drawn.
#[derive(Clone, Copy, Debug)]
enum Data {
    /// Normal, of variance 1.
    Normal,
    /// Uniform in −1..1.
    Uniform,
    /// Either sign, sizes spread evenly over 2^±20 on a logarithmic scale.
    Wide,
}

const ALL: [Data; 3] = [Data::Normal, Data::Uniform, Data::Wide];

impl Data {
    fn tensor(self, dims: &[usize], rng: &mut ChaCha8Rng) -> Tensor {
        let mut unit = || (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let mut number = || match self {
            Data::Normal => (-2.0 * unit().max(f64::MIN_POSITIVE).ln()).sqrt() * (std::f64::consts::TAU * unit()).cos(),
            Data::Uniform => 2.0 * unit() - 1.0,
            Data::Wide => {
                let sign = if unit() < 0.5 { -1.0 } else { 1.0 };
                sign * (40.0 * unit() - 20.0).exp2()
            }
        };
        let ty = TensorType::new(DType::F32, dims);
        let values: Vec<f64> = (0..ty.shape.elements()).map(|_| number()).collect();
        Tensor::from_f64(ty, &values)
    }
}

/// A graph, and the rows of its output that are compared, with a graph and inputs that make those alone.
struct Subject {
    name: String,
    graph: Graph,
    inputs: Named,
    rows: Option<(Vec<usize>, Graph, Named)>,
}

fn run(args: &Args) -> Result<()> {
    let choice = args.adapter.clone().map_or(AdapterChoice::Best, AdapterChoice::Named);
    let session = Session::open_blocking(&choice)?;
    println!("{}, `cargo run --release --example precision -- --size {}`\n", session.adapter(), args.size);
    println!("| op | sizes | data | highest | high | medium |");
    println!("| --- | --- | --- | --- | --- | --- |");
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    for data in ALL {
        for subject in [product(args.size, data, &mut rng)?, gradient(args.size / 8, data, &mut rng)?] {
            row(&session, &subject, data)?;
        }
    }
    let heads = attention(args.size / 8, &mut rng)?;
    row(&session, &heads, Data::Normal)
}

/// One line of the table.
fn row(session: &Session, subject: &Subject, data: Data) -> Result<()> {
    let want = match &subject.rows {
        Some((_, graph, inputs)) => evaluate(graph, &Named::new(), inputs)?,
        None => evaluate(&subject.graph, &Named::new(), &subject.inputs)?,
    };
    let mut line = format!("| {} | {} |", subject.name, format!("{data:?}").to_lowercase());
    for precision in [MatmulPrecision::Highest, MatmulPrecision::High, MatmulPrecision::Medium] {
        let options = CompileOptions { precision, ..CompileOptions::default() };
        let program = session.compile(&subject.graph, &Named::new(), &options)?;
        let given: Vec<(&str, &Tensor)> = subject.inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
        let got = program.run(&given)?;
        let (name, want) = want.first_key_value().ok_or("the graph has no output")?;
        let values = got[name].to_f64();
        let width = *got[name].shape().dims().last().unwrap_or(&1);
        let of_row = |r: &usize| values[r * width..(r + 1) * width].to_vec();
        let values: Vec<f64> = match &subject.rows {
            Some((rows, ..)) => rows.iter().flat_map(of_row).collect(),
            None => values,
        };
        let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
        let apart = norm(&mut values.iter().zip(&want.data).map(|(g, w)| g - w));
        let mark = if program.report().findings.iter().any(|f| f.pass == "select") { " (as highest)" } else { "" };
        line.push_str(&format!(" {:.1e}{mark} |", apart / norm(&mut want.data.iter().copied())));
    }
    println!("{line}");
    Ok(())
}

/// (size, size) · (size, size).
fn product(size: usize, data: Data, rng: &mut ChaCha8Rng) -> Result<Subject> {
    let graph = |rows: usize| -> Result<Graph> {
        let mut b = Builder::new();
        let x = b.input("a", TensorType::new(DType::F32, [rows, size]))?;
        let y = b.input("b", TensorType::new(DType::F32, [size, size]))?;
        let z = b.matmul(x, y)?;
        b.output("c", z)?;
        Ok(b.finish()?)
    };
    let (a, b) = (data.tensor(&[size, size], rng), data.tensor(&[size, size], rng));
    let rows: Vec<usize> = (0..size.min(64)).map(|i| (i * 1009 + 17) % size).collect();
    let values = a.to_f64();
    let sampled: Vec<f64> = rows.iter().flat_map(|r| values[r * size..(r + 1) * size].to_vec()).collect();
    let sampled = Tensor::from_f64(TensorType::new(DType::F32, [rows.len(), size]), &sampled);
    let of_rows = (rows.clone(), graph(rows.len())?, named([("a", sampled), ("b", b.clone())]));
    let name = format!("matmul | {size}³");
    Ok(Subject { name, graph: graph(size)?, inputs: named([("a", a), ("b", b)]), rows: Some(of_rows) })
}

/// The gradient of a linear's weight.
fn gradient(size: usize, data: Data, rng: &mut ChaCha8Rng) -> Result<Subject> {
    let mut graph = Graph::default();
    let inputs = named([("x", data.tensor(&[4 * size, size], rng)), ("dy", data.tensor(&[4 * size, size], rng))]);
    let given: Vec<ValueId> = ["x", "dy"].map(|n| graph.push_input(inputs[n].ty().clone(), n).into()).into();
    let node = graph.push(Op::LinearGrad { bias: false }, given, "grad")?;
    graph.push_output("dw", node.into(), Disposition::Read)?;
    Ok(Subject {
        name: format!("linear's weight gradient | {size} × {size}, {} rows", 4 * size),
        graph,
        inputs,
        rows: None,
    })
}

/// Causal attention of four heads of 64.
fn attention(size: usize, rng: &mut ChaCha8Rng) -> Result<Subject> {
    let attrs = kiln::graph::AttentionAttrs {
        heads: 4,
        scale: 0.125.into(),
        causal: true,
        mask: false,
        lengths: false,
        dropout: None,
    };
    let mut graph = Graph::default();
    let inputs = named(["q", "k", "v"].map(|n| (n, Data::Normal.tensor(&[1, size, 256], rng))));
    let given: Vec<ValueId> = ["q", "k", "v"].map(|n| graph.push_input(inputs[n].ty().clone(), n).into()).into();
    let node = graph.push(Op::Attention(attrs), given, "attention")?;
    graph.push_output("out", node.into(), Disposition::Read)?;
    Ok(Subject { name: format!("causal attention | {size} positions, 4 heads of 64"), graph, inputs, rows: None })
}

fn named<const N: usize>(pairs: [(&str, Tensor); N]) -> Named {
    pairs.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect()
}
