package blockhash

// Chain is a prompt's block hashes for one block size, with what they were made from, so that nobody takes them for
// another pool's or another adapter's.
type Chain struct {
	BlockSize int    // tokens, at least 1
	Seed      uint32 // Hasher.Fingerprint
	Root      Hash   // Hasher.Root of the request's extras
	Hashes    []Hash // of the full blocks, prompt order
}

// Fits reports whether c was made by h for the given block size and root.
func (c *Chain) Fits(h Hasher, root Hash, blockSize int) bool {
	return c.BlockSize == blockSize && c.Root == root && c.Seed == h.Fingerprint()
}

// Append appends the hashes of the blocks that become full when more tokens follow those in open to dst, where last is
// the hash of the block before open (the root if there is none). open holds fewer than blockSize tokens, and a copy of
// the new open block is appended to it in place of the old: give it room for blockSize tokens and it does not allocate.
// Fed with a prompt in any pieces it gives the same hashes as AppendChain with the whole.
func (h Hasher) Append(dst []Hash, last Hash, open, tokens []uint32, blockSize int) ([]Hash, Hash, []uint32) {
	if len(open) > 0 {
		n := min(blockSize-len(open), len(tokens))
		open = append(open, tokens[:n]...)
		if tokens = tokens[n:]; len(open) < blockSize {
			return dst, last, open
		}
		last = h.Next(last, h.Local(open))
		dst = append(dst, last)
	}
	for ; len(tokens) >= blockSize; tokens = tokens[blockSize:] {
		last = h.Next(last, h.Local(tokens[:blockSize]))
		dst = append(dst, last)
	}
	return dst, last, append(open[:0], tokens...)
}
