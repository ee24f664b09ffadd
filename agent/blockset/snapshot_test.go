package blockset

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/grapevine-llm/grapevine/agent/kvevent"
	"github.com/grapevine-llm/grapevine/gossip/blockhash"
)

func snapshotOf(t testing.TB, n int) []byte {
	s := New(Config{Hasher: testHasher}, &discard{})
	bigTree(s, n)
	s.Apply(testTime, kvevent.Batch{Events: []kvevent.Event{store(77, prompt(1, 1), 88)}}) // other size: ignored
	s.Apply(testTime, kvevent.Batch{Events: []kvevent.Event{&kvevent.Stored{Hashes: []uint64{1_000_001}, Parent: 99, HasParent: true, Tokens: make([]uint32, 16), BlockSize: 16, Group: -1}}})
	return s.AppendSnapshot(nil, testTime, Position{Known: true, Seq: 7, Start: testTime})
}

func TestSnapshotRefused(t *testing.T) {
	good := snapshotOf(t, 50)
	reseal := func(b []byte) []byte { // a damage that the checksum does not show
		return binary.LittleEndian.AppendUint64(b[:len(b)-8], xxh3.Hash(b[:len(b)-8]))
	}
	for _, c := range []struct {
		name  string
		bytes func([]byte) []byte
		seed  uint64
		want  error
	}{
		{"empty", func(b []byte) []byte { return nil }, 1337, ErrSnapshotVersion},
		{"another file", func(b []byte) []byte { return []byte("#!/bin/sh\n") }, 1337, ErrSnapshotVersion},
		{"later version", func(b []byte) []byte { b[4]++; return reseal(b) }, 1337, ErrSnapshotVersion},
		{"another seed", func(b []byte) []byte { return b }, 1, ErrSnapshotSeed},
		{"one bit", func(b []byte) []byte { b[len(b)/2] ^= 4; return b }, 1337, ErrSnapshotDamaged},
		{"cut", func(b []byte) []byte { return b[:len(b)/2] }, 1337, ErrSnapshotDamaged},
		{"cut and sealed", func(b []byte) []byte { return reseal(b[:len(b)/2]) }, 1337, ErrSnapshotDamaged},
		{"more behind it", func(b []byte) []byte { return reseal(append(b, 1)) }, 1337, ErrSnapshotDamaged},
	} {
		t.Run(c.name, func(t *testing.T) {
			sink := &discard{}
			s := New(Config{Hasher: blockhash.NewHasher(c.seed)}, sink)
			_, err := s.LoadSnapshot(c.bytes(append([]byte{}, good...)), testTime)
			if !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if sink.calls > 0 || s.Stats().Copies > 0 {
				t.Errorf("%d calls of the sink, %d copies after a refused snapshot", sink.calls, s.Stats().Copies)
			}
		})
	}
}

func TestSnapshotSize(t *testing.T) {
	if n := len(snapshotOf(t, 12_000)); n > 12_000*30 {
		t.Errorf("%d bytes for 12,000 blocks, want at most 30 a block", n)
	}
}

func FuzzLoadSnapshot(f *testing.F) {
	good := snapshotOf(f, 20)
	f.Add(good[:len(good)-8])
	f.Fuzz(func(t *testing.T, body []byte) {
		s := New(Config{Hasher: testHasher, MaxBlocks: 1 << 12}, newOrder(t))
		b := binary.LittleEndian.AppendUint64(body, xxh3.Hash(body))
		if _, err := s.LoadSnapshot(b, testTime); err == nil {
			checkInvariants(t, s)
		}
	})
}

func BenchmarkSnapshot(b *testing.B) {
	snap := snapshotOf(b, 12_000)
	s := New(Config{Hasher: testHasher}, &discard{})
	b.Run("load", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := s.LoadSnapshot(snap, testTime); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("append", func(b *testing.B) {
		b.ReportAllocs()
		var buf []byte
		for b.Loop() {
			buf = s.AppendSnapshot(buf[:0], testTime.Add(time.Minute), Position{})
		}
		b.ReportMetric(float64(len(buf))/12_000, "bytes/block")
	})
}
