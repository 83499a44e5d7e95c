//! In: nothing; out: the attributes of ops that have several. Knows only numbers.

#[cfg(doc)]
use super::Op;
use super::Scalar;
use std::fmt;

/// Attributes of [`Op::Attention`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionAttrs {
    /// Number of heads H; the width of q, k and v is H times the head size D.
    pub heads: usize,
    /// Factor on the scores, finite.
    pub scale: Scalar,
    /// Query i sees only keys j ≤ i + offset, with offset = Sk − Sq, which may be negative: aligned at the bottom
    /// right. [`AttentionAttrs::lengths`] has an offset of its own.
    pub causal: bool,
    /// An additive mask is the fourth input, broadcast to (B, H, Sq, Sk); −∞ hides a key. What a hidden key and its
    /// value hold is never read.
    pub mask: bool,
    /// `lengths: i32[B]`, each in 0..=Sk, is the last input: query i of batch row b sees key j only if
    /// j < `length[b]`, whatever lies past it. With it, causal's offset is max(`length[b]` − Sq, 0): the queries are the
    /// last Sq of a longer sequence (a cache), or its first Sq positions, padded on the right.
    pub lengths: bool,
    /// Weights are dropped after softmax; a counter U32 (3) is the last input of all. Head h has site + h, and its
    /// elements are counted in (B, Sq, Sk): as heads written apart count them.
    pub dropout: Option<DropoutAttrs>,
}

impl AttentionAttrs {
    /// How many inputs [`Op::Attention`] has.
    pub fn inputs(&self) -> usize {
        3 + usize::from(self.mask) + usize::from(self.lengths) + usize::from(self.dropout.is_some())
    }
}

/// `12 heads, scale 0.125, causal`.
impl fmt::Display for AttentionAttrs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} heads, scale {}", self.heads, self.scale)?;
        for (on, word) in [(self.causal, "causal"), (self.mask, "mask"), (self.lengths, "lengths")] {
            if on {
                write!(f, ", {word}")?;
            }
        }
        match self.dropout {
            Some(dropout) => write!(f, ", dropout {dropout}"),
            None => Ok(()),
        }
    }
}

/// Attributes of [`Op::Dropout`]. Element i of the value is dropped if the random word w(i) is below
/// round(p · 2³²), else multiplied by 1 / (1 − p). w(i) is word i mod 4 of Philox 4x32-10 (Salmon and others, "Parallel
/// random numbers: as easy as 1, 2, 3", 2011) with key (counter\[0\], counter\[1\]), the seed, and counter
/// (⌊i / 4⌋, counter\[2\], site, 0), counter\[2\] the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DropoutAttrs {
    /// Probability of an element to be dropped, in 0..1.
    pub p: Scalar,
    /// Tells the dropouts of a graph apart.
    pub site: u32,
}

impl DropoutAttrs {
    /// Random words below this drop their element.
    pub fn threshold(&self) -> u32 {
        (f64::from(self.p.get()) * 4_294_967_296.0).round().clamp(0.0, 4_294_967_295.0) as u32
    }

    /// What a kept element is multiplied with.
    pub fn keep_scale(&self) -> f32 {
        (1.0 / (1.0 - f64::from(self.p.get()))) as f32
    }
}

/// `0.1 at site 3`.
impl fmt::Display for DropoutAttrs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at site {}", self.p, self.site)
    }
}

/// Attributes of [`Op::CrossEntropy`]. With log-softmax l along the axis, smoothing s, C classes and target t, the loss
/// is −(1 − s) · l\[t\] − s / C · Σ l, as PyTorch's `cross_entropy(…, label_smoothing=s, reduction="none")`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CrossEntropyAttrs {
    /// Where the classes lie.
    pub axis: usize,
    /// A target of this value has loss 0 and gradient 0.
    pub ignore_index: Option<i32>,
    /// s, in 0..=1.
    pub label_smoothing: Scalar,
}

/// `axis 1, ignore -100, smoothing 0.1`.
impl fmt::Display for CrossEntropyAttrs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "axis {}", self.axis)?;
        if let Some(index) = self.ignore_index {
            write!(f, ", ignore {index}")?;
        }
        if self.label_smoothing.get() != 0.0 {
            write!(f, ", smoothing {}", self.label_smoothing)?;
        }
        Ok(())
    }
}

/// Attributes of [`Op::Adam`] (Kingma and Ba, arXiv 1412.6980; decoupled: Loshchilov and Hutter, arXiv 1711.05101).
/// The scalars are (learning rate, 1 − β1^t, 1 − β2^t) at step t, and where there are five of them a factor of the
/// gradient and whether the step counts: 1, or 0 to leave all as it is. With g the gradient times that factor (plus λ · w
/// unless decoupled):
/// m' = β1 · m + (1 − β1) · g, v' = β2 · v + (1 − β2) · g²,
/// w' = w · (1 − lr · λ if decoupled) − lr · (m' / (1 − β1^t)) / (sqrt(v' / (1 − β2^t)) + ε).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AdamAttrs {
    /// Decay of the first moment.
    pub beta1: Scalar,
    /// Decay of the second moment.
    pub beta2: Scalar,
    /// ε.
    pub eps: Scalar,
    /// λ.
    pub weight_decay: Scalar,
    /// AdamW: decay acts on the weight, not through the gradient.
    pub decoupled: bool,
    /// It also gives w' in f16.
    pub narrow: bool,
}

/// `betas 0.9 0.999, eps 1e-8, decay 0.1 decoupled, narrow`.
impl fmt::Display for AdamAttrs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "betas {} {}, eps {}", self.beta1, self.beta2, self.eps)?;
        if self.weight_decay.get() != 0.0 {
            write!(f, ", decay {}{}", self.weight_decay, if self.decoupled { " decoupled" } else { "" })?;
        }
        if self.narrow {
            f.write_str(", narrow")?;
        }
        Ok(())
    }
}
