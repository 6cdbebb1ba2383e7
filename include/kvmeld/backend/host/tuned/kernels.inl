// SPDX-License-Identifier: Apache-2.0
// Compiled once per instruction set: includes every kernel.
#include "vectors.inl"

#include "rows.inl"

#include "columns.inl"

#include "products.inl"
#include "selection.inl"
#include "softmax.inl"
