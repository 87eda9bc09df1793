//! 8-bit HSV as OpenCV defines it: hue 0 to 179, saturation and value 0 to 255.

/// Table of round(c * 2^12 / i); entry 0 is 0.
const fn reciprocals(c: u32) -> [i32; 256] {
    let mut table = [0; 256];
    let mut i = 1;
    while i < 256 {
        // Nearest whole number; the quotient is never halfway between two.
        table[i] = (((c << 12) * 2 + i as u32) / (2 * i as u32)) as i32;
        i += 1;
    }
    table
}

static SATURATION: [i32; 256] = reciprocals(255);
static HUE: [i32; 256] = reciprocals(30);

/// One pixel.
#[inline]
pub fn rgb_to_hsv([r, g, b]: [u8; 3]) -> [u8; 3] {
    let (r, g, b) = (i32::from(r), i32::from(g), i32::from(b));
    let v = r.max(g).max(b);
    let range = v - r.min(g).min(b);
    let s = (range * SATURATION[v as usize] + (1 << 11)) >> 12;
    let sector = if v == r {
        g - b
    } else if v == g {
        b - r + 2 * range
    } else {
        r - g + 4 * range
    };
    let h = (sector * HUE[range as usize] + (1 << 11)) >> 12;
    let h = if h < 0 { h + 180 } else { h };
    [h as u8, s as u8, v as u8]
}

/// One pixel; hue is taken modulo 180.
#[inline]
pub fn hsv_to_rgb([h, s, v]: [u8; 3]) -> [u8; 3] {
    let s = f32::from(s) * (1.0 / 255.0);
    let v = f32::from(v);
    let sector = f32::from(h % 180) * (1.0 / 30.0);
    let k = sector as u32;
    let f = sector - k as f32;
    let byte = |x: f32| (x + 0.5) as u8;
    let (top, p) = (v as u8, byte(v * (1.0 - s)));
    let (q, t) = (byte(v * (1.0 - s * f)), byte(v * (1.0 - s * (1.0 - f))));
    match k {
        0 => [top, t, p],
        1 => [q, top, p],
        2 => [p, top, t],
        3 => [p, q, top],
        4 => [t, p, top],
        _ => [top, p, q],
    }
}

/// What hue (modulo 180), saturation and value (clipped) become when they are multiplied.
pub fn hsv_tables(gains: [f64; 3]) -> [[u8; 256]; 3] {
    let mut tables = [[0u8; 256]; 3];
    for i in 0..256 {
        let scaled = gains.map(|g| i as f64 * g);
        tables[0][i] = (scaled[0] % 180.0) as u8;
        tables[1][i] = scaled[1].clamp(0.0, 255.0) as u8;
        tables[2][i] = scaled[2].clamp(0.0, 255.0) as u8;
    }
    tables
}

/// Multiplies hue (modulo 180), saturation and value (clipped) of RGB pixels through 8-bit tables.
pub fn scale_hsv(pixels: &mut [u8], gains: [f64; 3]) {
    let tables = hsv_tables(gains);
    for pixel in pixels.as_chunks_mut::<3>().0 {
        let [h, s, v] = rgb_to_hsv(*pixel);
        *pixel = hsv_to_rgb([tables[0][h as usize], tables[1][s as usize], tables[2][v as usize]]);
    }
}
