//! Trains a small network of linear layers to read handwritten digits, the UCI optical digits in examples/data, and
//! tests it on a fifth of them that it has not seen. An epoch is one submit.

use clap::Parser;
use kiln::gpu::AdapterChoice;
use kiln::graph::{Builder, CrossEntropy, DType, Graph, GraphError, TensorType, ValueId};
use kiln::model::{Init, init};
use kiln::session::{CompileOptions, Program, Session};
use kiln::tensor::Tensor;
use kiln::train::{Group, Optimiser, Schedule, TrainOptions};
use kiln::trainer::Trainer;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

#[derive(Parser)]
#[command(about = "Trains a network to read handwritten digits")]
struct Args {
    /// Passes over the training part.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    epochs: u64,
    /// Images of a step.
    #[arg(long, default_value_t = 32)]
    batch: usize,
    /// Columns between layers.
    #[arg(long, default_value_t = 256)]
    width: usize,
    /// Linear layers, with a ReLU between each two.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    depth: u64,
    /// Highest learning rate of AdamW; it falls along a cosine to 0.
    #[arg(long, default_value_t = 2e-3)]
    rate: f64,
    /// Seed of parameters, the split and the order of images.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Part of the adapter's name.
    #[arg(long)]
    adapter: Option<String>,
}

/// Pixels of an image.
const PIXELS: usize = 64;
/// What an image can show.
const CLASSES: usize = 10;

/// An image and what it shows.
struct Digit {
    /// Row by row, −1 to 1.
    pixels: [f32; PIXELS],
    class: usize,
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

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let digits = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/digits.csv"))?;
    let (mut training, held_out) = split(digits, args.seed);
    println!(
        "{} images; the split by seed {}, a fifth of each digit held out:",
        training.len() + held_out.len(),
        args.seed
    );
    let count = |part: &[Digit]| line((0..CLASSES).map(|c| part.iter().filter(|d| d.class == c).count()));
    println!("  digit    {}", line(0..CLASSES));
    println!("  training {}  in all {}", count(&training), training.len());
    println!("  held out {}  in all {}", count(&held_out), held_out.len());
    let steps = training.len() / args.batch.max(1);
    if steps == 0 || args.batch == 0 {
        return Err(format!("--batch is {}, expected 1 to {}", args.batch, training.len()).into());
    }

    let choice = args.adapter.clone().map_or(AdapterChoice::Best, AdapterChoice::Named);
    let session = Session::open_blocking(&choice)?;
    println!("adapter: {}", session.adapter());
    let begin = Instant::now();
    let forward = network(args, args.batch, true)?;
    let params = init(&forward.layout, Init::He, args.seed)?;
    let options = TrainOptions {
        optimiser: Optimiser::adamw(0.01),
        learning_rate: Schedule::constant(args.rate).cosine(args.epochs * steps as u64, 0.0),
        groups: vec![Group::no_decay()],
        ..TrainOptions::default()
    };
    let trainer = session.trainer(&forward, &params, &options, &CompileOptions::default())?;
    let evaluation = trainer.inference(&network(args, held_out.len(), false)?, &CompileOptions::default())?;
    println!(
        "{} linear layers, width {}; {steps} steps an epoch in one submit, {} dispatches a step",
        args.depth,
        args.width,
        trainer.program().dispatches()
    );
    println!("{:>5} {:>9} {:>19} {:>8}", "epoch", "loss", "held-out accuracy", "seconds");
    let mut predicted = Vec::new();
    for epoch in 0..args.epochs {
        shuffle(&mut training, args.seed, epoch + 1);
        let loss = train(&trainer, &training, args.batch)?;
        predicted = predict(&trainer, &evaluation, &held_out)?;
        let right = predicted.iter().zip(&held_out).filter(|(p, d)| **p == d.class).count();
        println!(
            "{:>5} {loss:>9.4} {:>17.2} % {:>8.1}",
            epoch + 1,
            100.0 * right as f64 / held_out.len() as f64,
            begin.elapsed().as_secs_f64()
        );
    }
    report(&held_out, &predicted);
    Ok(())
}

/// 64 pixels of 0 to 16 and a class in each line.
fn read(file: &Path) -> Result<Vec<Digit>, Box<dyn Error>> {
    let wrong = |what: String| format!("{}: {what}", file.display());
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_path(file).map_err(|e| wrong(e.to_string()))?;
    let mut digits = Vec::new();
    for (line, record) in reader.deserialize::<Vec<u8>>().enumerate() {
        let record = record.map_err(|e| wrong(e.to_string()))?;
        let fits = record.len() == PIXELS + 1 && record[..PIXELS].iter().all(|p| *p <= 16) && record[PIXELS] < 10;
        if !fits {
            let line = line + 1;
            return Err(wrong(format!("line {line}: expected 64 pixels of 0 to 16 and a digit, got {record:?}")).into());
        }
        let mut pixels = [0.0; PIXELS];
        pixels.iter_mut().zip(&record).for_each(|(to, from)| *to = f32::from(*from) / 8.0 - 1.0);
        digits.push(Digit { pixels, class: record[PIXELS].into() });
    }
    Ok(digits)
}

/// A training part and a part held out, to which each digit gives a fifth of its images, picked by the seed.
fn split(mut digits: Vec<Digit>, seed: u64) -> (Vec<Digit>, Vec<Digit>) {
    shuffle(&mut digits, seed, 0);
    let (mut training, mut held_out) = (Vec::new(), Vec::new());
    for class in 0..CLASSES {
        let (mut own, others) = digits.into_iter().partition::<Vec<_>, _>(|d| d.class == class);
        held_out.extend(own.drain(..(own.len() + 2) / 5));
        training.extend(own);
        digits = others;
    }
    (training, held_out)
}

/// Fisher and Yates' shuffle.
fn shuffle(digits: &mut [Digit], seed: u64, stream: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(stream);
    for i in (1..digits.len()).rev() {
        let other = (u128::from(rng.next_u64()) * (i as u128 + 1)) >> 64;
        digits.swap(i, other as usize);
    }
}

/// Linear layers with a ReLU between each two: input "input" (B, 64), output "logits" (B, 10); or to train it, input
/// "targets" (B) beside, output "loss" ().
fn network(args: &Args, batch: usize, training: bool) -> Result<Graph, GraphError> {
    let mut b = Builder::new();
    let mut x = b.input("input", TensorType::new(DType::F32, [batch, PIXELS]))?;
    for layer in 0..args.depth {
        let inputs = if layer == 0 { PIXELS } else { args.width };
        let last = layer + 1 == args.depth;
        let outputs = if last { CLASSES } else { args.width };
        // as in an nn.Sequential, where each ReLU has a number too
        x = b.scope(&format!("layers.{}", 2 * layer), |b| linear(b, x, inputs, outputs))?;
        if !last {
            x = b.relu(x)?;
        }
    }
    if training {
        let targets = b.input("targets", TensorType::new(DType::I32, [batch]))?;
        let loss = b.cross_entropy(x, targets, CrossEntropy::default())?;
        b.output("loss", loss)?;
    } else {
        b.output("logits", x)?;
    }
    b.finish()
}

fn linear(b: &mut Builder, x: ValueId, inputs: usize, outputs: usize) -> Result<ValueId, GraphError> {
    let weight = b.parameter("weight", TensorType::new(DType::F32, [outputs, inputs]))?;
    let bias = b.parameter("bias", TensorType::new(DType::F32, [outputs]))?;
    b.linear(x, weight, Some(bias))
}

/// Trains on all images in their order, but for a rest that fills no batch, and gives the mean loss.
fn train(trainer: &Trainer, digits: &[Digit], batch: usize) -> Result<f64, kiln::Error> {
    let batches = digits.chunks_exact(batch).map(|digits| {
        let classes: Vec<i32> = digits.iter().map(|d| d.class as i32).collect();
        (images(digits), Tensor::i32([batch], &classes))
    });
    let batches: Vec<(Tensor, Tensor)> = batches.collect();
    let refs: Vec<_> = batches.iter().map(|(x, targets)| [("input", x), ("targets", targets)]).collect();
    let reports = trainer.run_steps(&refs)?;
    Ok(reports.iter().map(|r| f64::from(r.loss)).sum::<f64>() / reports.len() as f64)
}

fn images(digits: &[Digit]) -> Tensor {
    let pixels: Vec<f32> = digits.iter().flat_map(|d| d.pixels).collect();
    Tensor::f32([digits.len(), PIXELS], &pixels)
}

/// The class with the highest logit of each image, by the weights of now.
fn predict(trainer: &Trainer, evaluation: &Program, digits: &[Digit]) -> Result<Vec<usize>, kiln::Error> {
    trainer.refresh(evaluation)?;
    let logits = evaluation.run(&[("input", &images(digits))])?["logits"].to_f32();
    let likeliest = |row: &[f32]| (0..CLASSES).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap_or(0);
    Ok(logits.chunks_exact(CLASSES).map(likeliest).collect())
}

/// What is right of each digit, and what is taken for what.
fn report(digits: &[Digit], predicted: &[usize]) {
    let mut confusion = [[0; CLASSES]; CLASSES];
    digits.iter().zip(predicted).for_each(|(digit, p)| confusion[digit.class][*p] += 1);
    let right: usize = (0..CLASSES).map(|c| confusion[c][c]).sum();
    println!("\nheld out, of each digit:");
    println!("  digit    {}", line(0..CLASSES));
    println!("  images   {}", line(confusion.iter().map(|row| row.iter().sum())));
    println!("  right    {}", line((0..CLASSES).map(|c| confusion[c][c])));
    let pairs = (0..CLASSES).flat_map(|c| (0..CLASSES).map(move |p| (c, p))).filter(|(c, p)| c != p);
    let wrong = pairs.filter(|(c, p)| confusion[*c][*p] > 0);
    let wrong: Vec<String> = wrong.map(|(c, p)| format!("{c} for {p}: {}", confusion[c][p])).collect();
    println!("  taken wrongly: {}", if wrong.is_empty() { "none".into() } else { wrong.join(", ") });
    println!("held-out accuracy: {:.2} % ({right} of {})", 100.0 * right as f64 / digits.len() as f64, digits.len());
}

fn line(numbers: impl Iterator<Item = usize>) -> String {
    numbers.map(|n| format!("{n:>4}")).collect()
}
