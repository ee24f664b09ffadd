package extproc

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// codec is protobuf for gRPC, as gRPC's own but for the memory. Of that there are buffers of 256 B, 4, 16, 32 KiB and 1 MiB (grpc-go 1.85,
// mem/buffer_pool.go), each cleared as a whole before it is used again: a piece of a body of 64 KiB means a mebibyte of zeros,
// several times a request.
type codec struct{ pool mem.BufferPool }

// newPool makes buffers of every power of two from 256 bytes to 4 MiB.
func newPool() mem.BufferPool {
	var exponents []uint8
	for e := uint8(8); e <= 22; e++ {
		exponents = append(exponents, e)
	}
	pool, err := mem.NewBinaryTieredBufferPool(exponents...)
	if err != nil {
		panic(err) // only for an exponent over 63
	}
	return pool
}

// Marshal encodes a protobuf message.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("encode %T: no protobuf message", v)
	}
	size := proto.Size(m)
	options := proto.MarshalOptions{UseCachedSize: true} // it was just computed
	if mem.IsBelowBufferPoolingThreshold(size) {
		b, err := options.Marshal(m)
		return mem.BufferSlice{mem.SliceBuffer(b)}, err
	}
	b := c.pool.Get(size)
	if _, err := options.MarshalAppend((*b)[:0], m); err != nil {
		c.pool.Put(b)
		return nil, err
	}
	return mem.BufferSlice{mem.NewBuffer(b, c.pool)}, nil
}

// Unmarshal decodes a protobuf message; nothing of it lies in data.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("decode %T: no protobuf message", v)
	}
	b := data.MaterializeToBuffer(c.pool)
	defer b.Free()
	return proto.Unmarshal(b.ReadOnlyData(), m)
}

// Name is what gRPC calls protobuf in its content type.
func (c codec) Name() string { return "proto" }
