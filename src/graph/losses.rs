//! In: predictions and targets in a graph that is being built; out: a scalar loss, f32 (). The losses that a
//! [`Builder`] writes out of ops; knows nothing of how they are differentiated.

use super::{Binary, Builder, Comparison, CrossEntropyAttrs, DType, GraphError, Reduction, TensorType, ValueId};

type Value = Result<ValueId, GraphError>;

/// The input of [`Builder::dropout_counter`]. A trainer fills it by itself.
pub const DROPOUT_COUNTER: &str = "dropout.counter";

/// What becomes of the losses of all targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LossReduction {
    /// Their sum over the number of targets that are not ignored. Of none it is 0, and so are its gradients, where
    /// PyTorch gives NaN.
    #[default]
    Mean,
    /// Their sum.
    Sum,
}

/// Attributes of [`Builder::cross_entropy`]; the defaults are PyTorch's, but for no `ignore_index`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropy {
    /// Where the classes lie.
    pub axis: usize,
    /// A target of this value counts for nothing.
    pub ignore_index: Option<i32>,
    /// How much of each target is spread evenly over all classes, 0 to 1.
    pub label_smoothing: f32,
    /// What becomes of the losses of all targets.
    pub reduction: LossReduction,
}

impl Default for CrossEntropy {
    /// Classes at axis 1, nothing ignored, no smoothing, the mean.
    fn default() -> Self {
        CrossEntropy { axis: 1, ignore_index: None, label_smoothing: 0.0, reduction: LossReduction::Mean }
    }
}

impl Builder {
    /// Cross entropy of logits (…, C, …), with C at the axis, and targets I32 (…, …): the mean or sum of
    /// [`Builder::cross_entropy_rows`].
    pub fn cross_entropy(&mut self, logits: ValueId, targets: ValueId, options: CrossEntropy) -> Value {
        let CrossEntropy { axis, ignore_index, label_smoothing, reduction } = options;
        let attrs = CrossEntropyAttrs { axis, ignore_index, label_smoothing: label_smoothing.into() };
        let rows = self.cross_entropy_rows(logits, targets, attrs)?;
        let all: Vec<usize> = (0..self.shape(rows).rank()).collect();
        match (reduction, ignore_index) {
            (LossReduction::Sum, _) => self.sum(rows, &all),
            (LossReduction::Mean, None) if self.shape(rows).elements() == 0 => self.sum(rows, &all),
            (LossReduction::Mean, None) => self.mean(rows, &all),
            (LossReduction::Mean, Some(index)) => {
                let counted = self.counted(targets, index)?;
                let counted = self.sum(counted, &all)?;
                let one = self.constant(1.0, TensorType::new(DType::F32, []))?;
                let counted = self.binary(Binary::Max, counted, one)?;
                let sum = self.sum(rows, &all)?;
                self.div(sum, counted)
            }
        }
    }

    /// 1 for each target that is not ignored, else 0, f32.
    fn counted(&mut self, targets: ValueId, ignore_index: i32) -> Value {
        // constants are held as f32, which has every integer up to 2^24
        if ignore_index as f32 as i64 != i64::from(ignore_index) {
            return Err(GraphError::Attribute {
                op: "cross_entropy",
                node: self.path("cross_entropy"),
                what: "ignore_index",
                expected: "an integer that f32 holds, as -100".into(),
                got: ignore_index.to_string(),
            });
        }
        let scalar = |dtype| TensorType::new(dtype, []);
        let ignored = self.constant(ignore_index as f32, scalar(DType::I32))?;
        let is_ignored = self.compare(Comparison::Equal, targets, ignored)?;
        let [zero, one] = [self.constant(0.0, scalar(DType::F32))?, self.constant(1.0, scalar(DType::F32))?];
        self.select(is_ignored, zero, one)
    }

    /// The loss that the seed trains with: softmax over the classes, then cross entropy of its result, as if that
    /// were logits.
    pub fn seed_loss(&mut self, logits: ValueId, targets: ValueId, options: CrossEntropy) -> Value {
        let probabilities = self.softmax(logits, options.axis)?;
        self.cross_entropy(probabilities, targets, options)
    }

    /// The mean of (a − b)² over all elements.
    pub fn mse(&mut self, a: ValueId, b: ValueId) -> Value {
        let difference = self.sub(a, b)?;
        let square = self.mul(difference, difference)?;
        let all: Vec<usize> = (0..self.shape(square).rank()).collect();
        let square = if self.ty(square).dtype == DType::F32 { square } else { self.cast(square, DType::F32)? };
        self.reduce(Reduction::Mean, square, &all, false)
    }

    /// The counter of all dropouts of a graph, U32 (3): the seed's low and high word and the step. The same input at
    /// every call.
    pub fn dropout_counter(&mut self) -> Value {
        match self.find_input(DROPOUT_COUNTER) {
            Some(counter) => Ok(counter),
            None => self.input(DROPOUT_COUNTER, TensorType::new(DType::U32, [3])),
        }
    }
}
