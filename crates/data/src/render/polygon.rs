//! Filled polygons with whole-pixel corners, edges included, as OpenCV fills them.

/// Marks with 1 the pixels of a `width` x `height` mask inside the polygon (even-odd) or on its edges.
/// Corners may lie outside.
pub fn fill_polygon(mask: &mut [u8], width: usize, height: usize, corners: &[[i32; 2]]) {
    if corners.is_empty() || width == 0 || height == 0 {
        return;
    }
    let edges = || (0..corners.len()).map(|i| (corners[i], corners[(i + 1) % corners.len()]));
    let low = corners.iter().map(|c| c[1]).min().unwrap_or(0).max(0);
    let high = corners.iter().map(|c| c[1]).max().unwrap_or(0).min(height as i32 - 1);
    let mut crossings: Vec<f64> = Vec::new();
    for y in low..=high {
        crossings.clear();
        for (a, b) in edges().filter(|(a, b)| (a[1] <= y) != (b[1] <= y)) {
            let t = f64::from(y - a[1]) / f64::from(b[1] - a[1]);
            crossings.push(f64::from(a[0]) + t * f64::from(b[0] - a[0]));
        }
        crossings.sort_by(f64::total_cmp);
        for pair in crossings.chunks_exact(2) {
            let from = pair[0].ceil().max(0.0) as usize;
            let to = pair[1].floor().min(width as f64 - 1.0);
            if to >= 0.0 && from <= to as usize {
                mask[y as usize * width + from..=y as usize * width + to as usize].fill(1);
            }
        }
    }
    for (a, b) in edges() {
        line(mask, width, height, a, b);
    }
}

fn line(mask: &mut [u8], width: usize, height: usize, a: [i32; 2], b: [i32; 2]) {
    let (dx, dy) = (f64::from(b[0]) - f64::from(a[0]), f64::from(b[1]) - f64::from(a[1]));
    let steps = dx.abs().max(dy.abs());
    // Corners come from label files, which are clipped to the canvas; anything longer is not ours to draw.
    if steps > 1e6 {
        return;
    }
    for i in 0..=steps as usize {
        let t = if steps > 0.0 { i as f64 / steps } else { 0.0 };
        let x = (f64::from(a[0]) + t * dx).round_ties_even();
        let y = (f64::from(a[1]) + t * dy).round_ties_even();
        if x >= 0.0 && y >= 0.0 && x < width as f64 && y < height as f64 {
            mask[y as usize * width + x as usize] = 1;
        }
    }
}
