//! Noise with the spectrum of photographs: about as much contrast in each octave of sizes.

use rand::Rng;

/// A field of `width` x `height` values with mean 0 and variance 1, row by row.
///
/// It grows from a grid of a few values: each round doubles the grid, smoothing it (a quadratic B-spline, so that no
/// grid shows), and adds new noise. `persistence` is the contrast of a round relative to the one before: 1 is 1/f noise
/// as rough as gravel, 0.5 is fog.
pub fn field(width: usize, height: usize, persistence: f32, rng: &mut impl Rng) -> Vec<f32> {
    let (columns, rows) = (sizes(width), sizes(height));
    // The axis that needs fewer rounds starts with a grid that is as small in the other's first rounds.
    let rounds = columns.len().max(rows.len());
    let at = |sizes: &[usize], round: usize| sizes[(sizes.len() + round).saturating_sub(rounds)];
    let (mut w, mut h) = (columns[0], rows[0]);
    let mut values = vec![0.0; w * h];
    let mut contrast = 1.0;
    add(&mut values, contrast, rng);
    for round in 1..rounds {
        let (next_w, next_h) = (at(&columns, round), at(&rows, round));
        values = grown(&values, (w, h), (next_w, next_h));
        (w, h) = (next_w, next_h);
        contrast *= persistence;
        add(&mut values, contrast, rng);
    }
    normalise(&mut values);
    values
}

/// Lengths of an axis from the first grid to the last: each is grown from the one before it.
fn sizes(length: usize) -> Vec<usize> {
    let mut sizes = vec![length.max(1)];
    while let Some(&last) = sizes.last()
        && last > 5
    {
        sizes.push(last.div_ceil(2) + 1);
    }
    sizes.reverse();
    sizes
}

/// Adds evenly distributed noise of this standard deviation.
fn add(values: &mut [f32], contrast: f32, rng: &mut impl Rng) {
    let mut bytes = [0u8; 1024];
    // The standard deviation of a random byte is 73.9.
    let scale = contrast / 73.9;
    for part in values.chunks_mut(bytes.len()) {
        rng.fill_bytes(&mut bytes[..part.len()]);
        for (value, &byte) in part.iter_mut().zip(&bytes) {
            *value += scale * (f32::from(byte) - 127.5);
        }
    }
}

/// Twice the resolution in each direction that has grown.
fn grown(values: &[f32], (w, h): (usize, usize), (to_w, to_h): (usize, usize)) -> Vec<f32> {
    let mut out = vec![0.0; to_w * to_h];
    let mut row = vec![0.0; w];
    for (y, out) in out.chunks_exact_mut(to_w).enumerate() {
        let (first, weight) = source(y, h, to_h);
        let second = (first + 1).min(h - 1);
        let (a, b) = (&values[first * w..][..w], &values[second * w..][..w]);
        for ((value, a), b) in row.iter_mut().zip(a).zip(b) {
            *value = weight * a + (1.0 - weight) * b;
        }
        if to_w == w {
            out.copy_from_slice(&row);
            continue;
        }
        for (pair, ab) in out.chunks_mut(2).zip(row.windows(2)) {
            pair[0] = 0.75 * ab[0] + 0.25 * ab[1];
            if let Some(second) = pair.get_mut(1) {
                *second = 0.25 * ab[0] + 0.75 * ab[1];
            }
        }
    }
    out
}

/// The first of the two places that make up a place, and its weight.
fn source(at: usize, from: usize, to: usize) -> (usize, f32) {
    match (from == to, at % 2) {
        (true, _) => (at, 1.0),
        (false, 0) => (at / 2, 0.75),
        (false, _) => (at / 2, 0.25),
    }
}

fn normalise(values: &mut [f32]) {
    let count = values.len() as f64;
    let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / count;
    let variance = values.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / count;
    let (mean, scale) = (mean as f32, if variance > 0.0 { (1.0 / variance.sqrt()) as f32 } else { 0.0 });
    for value in values {
        *value = (*value - mean) * scale;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    /// Mean square of the difference between values `step` apart in a row.
    fn roughness(values: &[f32], width: usize, step: usize) -> f64 {
        let squares: Vec<f64> = values
            .chunks_exact(width)
            .flat_map(|row| row.iter().zip(&row[step..]).map(|(a, b)| f64::from((a - b) * (a - b))))
            .collect();
        squares.iter().sum::<f64>() / squares.len() as f64
    }

    #[test]
    fn sizes_of_any_kind_give_as_many_values_with_mean_0_and_variance_1() {
        for (w, h) in [(1, 1), (2, 9), (5, 5), (6, 640), (640, 427), (33, 17)] {
            let values = field(w, h, 0.9, &mut ChaCha8Rng::seed_from_u64(1));
            assert_eq!(values.len(), w * h);
            let mean = values.iter().sum::<f32>() / values.len() as f32;
            assert!(mean.abs() < 1e-3, "{w}x{h}: {mean}");
            let variance = values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32;
            assert!(w * h == 1 || (variance - 1.0).abs() < 1e-2, "{w}x{h}: {variance}");
        }
    }

    #[test]
    fn contrast_grows_with_distance_and_at_pixel_level_with_persistence() {
        let of = |persistence| field(256, 256, persistence, &mut ChaCha8Rng::seed_from_u64(2));
        let (soft, rough) = (of(0.5), of(1.0));
        for values in [&soft, &rough] {
            let [near, mid, far] = [1, 8, 64].map(|step| roughness(values, 256, step));
            assert!(near < mid && mid < far, "{near} {mid} {far}");
        }
        assert!(4.0 * roughness(&soft, 256, 1) < roughness(&rough, 256, 1));
    }
}
