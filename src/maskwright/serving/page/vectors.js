// Arithmetic of embeddings: cosines, neighbours, and the plane in which points lie widest apart.

export function dot(a, b) {
  let sum = 0;
  for (let place = 0; place < a.length; place++) sum += a[place] * b[place];
  return sum;
}

export function normalise(vector) {
  const length = Math.sqrt(dot(vector, vector));
  return length > 0 ? vector.map((value) => value / length) : vector.slice();
}

export function cosine(a, b) {
  const lengths = Math.sqrt(dot(a, a) * dot(b, b));
  return lengths > 0 ? dot(a, b) / lengths : 0;
}

/** All pairs: a matrix of cosines. */
export function cosineMatrix(vectors) {
  const unit = vectors.map(normalise);
  return unit.map((a) => unit.map((b) => dot(a, b)));
}

/** The nearest first: pairs of a number and its cosine. */
export function findNeighbours(query, vectors, most = 10) {
  const scored = vectors.map((vector, number) => ({ number, score: cosine(query, vector) }));
  return scored.sort((a, b) => b.score - a.score || a.number - b.number).slice(0, most);
}

/**
 * Principal components: coordinates on the two axes of most variance, and the share of it that each has.
 * Works on the matrix of inner products between N points, so that D may be large: its eigenvectors, by power iteration.
 */
export function projectToPlane(vectors, rounds = 300) {
  const count = vectors.length;
  if (!count) return { points: [], shares: [0, 0] };
  const mean = vectors[0].map((_, place) => vectors.reduce((sum, vector) => sum + vector[place], 0) / count);
  const centred = vectors.map((vector) => vector.map((value, place) => value - mean[place]));
  const gram = centred.map((a) => centred.map((b) => dot(a, b)));
  const total = gram.reduce((sum, row, place) => sum + row[place], 0);
  const axes = [findAxis(gram, [], rounds)];
  axes.push(findAxis(gram, axes, rounds));
  const points = centred.map((_, place) => axes.map(({ value, vector }) => vector[place] * Math.sqrt(Math.max(value, 0))));
  return { points, shares: axes.map(({ value }) => (total > 0 ? Math.max(value, 0) / total : 0)) };
}

function findAxis(matrix, before, rounds) {
  // A start that is the same each time, and at right angles to nothing likely.
  let vector = normalise(matrix.map((_, place) => Math.sin(1 + place * 1.7) + 0.01 * place));
  let value = 0;
  for (let round = 0; round < rounds; round++) {
    let next = matrix.map((row) => dot(row, vector));
    for (const axis of before) {
      const along = dot(next, axis.vector);
      next = next.map((one, place) => one - along * axis.vector[place]);
    }
    const length = Math.sqrt(dot(next, next));
    if (length < 1e-12) return { value: 0, vector: vector.map(() => 0) };
    next = next.map((one) => one / length);
    const change = Math.abs(1 - Math.abs(dot(next, vector)));
    [vector, value] = [next, length];
    if (change < 1e-12) break;
  }
  const largest = vector.reduce((best, one) => (Math.abs(one) > Math.abs(best) ? one : best), 0);
  return { value, vector: largest < 0 ? vector.map((one) => -one) : vector };
}
