/**
 * Arithmetic that every device computes alike, bit for bit, in whatever language.
 *
 * Only +, −, ×, ÷, √ and ⌊ ⌋ of double precision (IEEE 754), in the order in which they stand here;
 * nothing is fused. `Math.exp` and its like differ from browser to browser in their last bits. This
 * is the twin of `sottovoce.core.portable`.
 */

const LOG2_E = 1.4426950408889634;
const LN2_HIGH = 0.6931471803691238;
const LN2_LOW = 1.9082149292705877e-10;
const SMALLEST = -746.0;
const LARGEST = 710.0;
/** 1/13! to 1/2!. */
const FACTORIALS: readonly number[] = [
  6227020800, 479001600, 39916800, 3628800, 362880, 40320, 5040, 720, 120, 24, 6, 2,
].map((one) => 1 / one);
/** 1/23 to 1/1. */
const ODD: readonly number[] = [23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1].map((one) => 1 / one);
const CENTRE = 3.0;
/** Chebyshev's coefficients of (1 + 2x) e^(x²) erfc(x) in t = (x − 3) / (x + 3), for x from 0. */
const SERIES: readonly number[] = [
  1.17756257419656, 0.005353904539615676, -0.09377550342284209, 0.05436652555744322,
  -0.018976596707845208, 0.004453426061462712, -0.0006335531710553147, 1.7661719523171593e-05,
  1.2841532864056671e-05, -2.0072285659059913e-06, -1.807522790414837e-07, 7.549828343825093e-08,
  1.885668523838603e-09, -2.699519049798364e-09, -1.460079119939105e-11, 1.0361607445969489e-10,
  1.475715976623473e-12, -4.277340064396911e-12, -2.07922492859799e-13, 1.8134502003176963e-13,
  1.973425574544739e-14, -7.287943737592673e-15, -1.5169878690228116e-15, 2.3514112258781403e-16,
  1.0006111691821667e-16,
];

const room = new DataView(new ArrayBuffer(8));

/** 2^power, of a power from −1022 to 1023. */
export function powerOfTwo(power: number): number {
  room.setUint32(0, ((power + 1023) << 20) >>> 0);
  room.setUint32(4, 0);
  return room.getFloat64(0);
}

/** A finite number as part · 2^power, |part| in [½, 1); 0 as 0. */
export function frexp(x: number): [part: number, power: number] {
  if (x === 0) return [x, 0];
  let shift = 0;
  if (Math.abs(x) < 2.2250738585072014e-308) {
    x *= 18014398509481984; // 2^54: of numbers this small, the power is not written out
    shift = -54;
  }
  room.setFloat64(0, x);
  const high = room.getUint32(0);
  const power = ((high >>> 20) & 0x7ff) - 1022;
  room.setUint32(0, (high & 0x800fffff) | (1022 << 20));
  return [room.getFloat64(0), power + shift];
}

/** e**x; 0 below −746 and infinite above 710. */
export function exp(x: number): number {
  if (x !== x) return x;
  if (x < SMALLEST) return 0.0;
  if (x > LARGEST) return Infinity;
  const k = Math.floor(x * LOG2_E + 0.5);
  const r = x - k * LN2_HIGH - k * LN2_LOW;
  let tail = 0.0;
  for (const one of FACTORIALS) tail = tail * r + one;
  const half = Math.floor(k / 2.0);
  // By two powers of two: one alone could be out of range.
  const whole = (1.0 + (r + r * r * tail)) * powerOfTwo(half);
  return whole * powerOfTwo(k - half);
}

/** The natural logarithm of a finite number above 0. */
export function log(x: number): number {
  let [part, power] = frexp(x);
  if (part < 0.7071067811865476) {
    part = 2.0 * part;
    power -= 1;
  }
  const s = (part - 1.0) / (part + 1.0);
  const square = s * s;
  let tail = 0.0;
  for (const one of ODD) tail = tail * square + one;
  return power * LN2_HIGH + (power * LN2_LOW + 2.0 * s * tail);
}

/** e^(x²) · erfc(x) of x from 0: the tail of a Gaussian as a part of its density. */
export function scaledErfc(x: number): number {
  const t = (x - CENTRE) / (x + CENTRE);
  const twice = 2.0 * t;
  let one = 0.0;
  let two = 0.0;
  for (let k = SERIES.length - 1; k > 0; k--) {
    [one, two] = [twice * one - two + SERIES[k]!, one];
  }
  return (t * one - two + SERIES[0]!) / (1.0 + 2.0 * x);
}

/** δ at ε of telling apart two Gaussians of variance 1 at this distance. */
export function gaussianDelta(distance: number, epsilon: number): number {
  const far = epsilon / distance;
  const a = distance / 2.0 - far;
  const b = distance / 2.0 + far;
  const root = 1.4142135623730951;
  const density = 0.5 * exp(-((a * a) / 2.0));
  if (a > 0.0) return 1.0 - density * (scaledErfc(a / root) + scaledErfc(b / root));
  return density * (scaledErfc(-a / root) - scaledErfc(b / root));
}
