//! Rectangular batches: pictures of similar shape share a frame that pads little.

/// The batches of a rectangular pass over a set.
#[derive(Clone, Debug, PartialEq)]
pub struct RectPlan {
    /// Sample ids in the order of the pass.
    pub order: Vec<usize>,
    /// Batch of each place in `order`.
    pub batch_of_position: Vec<usize>,
    /// Height and width of each batch's frame.
    pub batch_shapes_hw: Vec<[u32; 2]>,
}

impl RectPlan {
    /// The batches as slices of `order`, with their frames.
    pub fn batches(&self, batch: usize) -> impl Iterator<Item = (&[usize], [u32; 2])> {
        self.order.chunks(batch.max(1)).zip(self.batch_shapes_hw.iter().copied())
    }
}

/// Sorts by height / width (equal ratios keep their order) and gives each batch of `batch` pictures one
/// frame: all wider than high: (max ratio, 1); all higher: (1, 1 / min ratio); else (1, 1); times `size`,
/// rounded up to whole strides with `pad` strides added before rounding.
pub fn rect_plan(wh: &[[u32; 2]], size: u32, batch: usize, stride: u32, pad: f64) -> RectPlan {
    let batch = batch.max(1);
    let ratio: Vec<f64> = wh.iter().map(|&[w, h]| f64::from(h) / f64::from(w.max(1))).collect();
    let mut order: Vec<usize> = (0..wh.len()).collect();
    order.sort_by(|&a, &b| ratio[a].total_cmp(&ratio[b]));
    let stride = f64::from(stride.max(1));
    let batch_shapes_hw = order
        .chunks(batch)
        .map(|ids| {
            let (mut low, mut high) = (f64::INFINITY, 0.0f64);
            for &i in ids {
                low = low.min(ratio[i]);
                high = high.max(ratio[i]);
            }
            let shape = if high < 1.0 {
                [high, 1.0]
            } else if low > 1.0 {
                [1.0, 1.0 / low]
            } else {
                [1.0, 1.0]
            };
            shape.map(|v| ((v * f64::from(size) / stride + pad).ceil().max(1.0) * stride) as u32)
        })
        .collect();
    let batch_of_position = (0..wh.len()).map(|i| i / batch).collect();
    RectPlan { order, batch_of_position, batch_shapes_hw }
}
