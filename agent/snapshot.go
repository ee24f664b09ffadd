package agent

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/wire"
)

// A snapshot file is "GVAG", a version byte (1), the highest epoch used as a
// little-endian u64, and then what blockset.Set.AppendSnapshot writes.
const (
	snapshotMagic   = "GVAG\x01"
	snapshotHeader  = len(snapshotMagic) + 8
	maxSnapshotSize = 256 << 20
)

var errSnapshot = errors.New("not a snapshot of this version")

func appendSnapshotHeader(dst []byte, epoch uint64) []byte {
	dst = append(dst, snapshotMagic...)
	return binary.LittleEndian.AppendUint64(dst, epoch)
}

func readSnapshotHeader(b []byte) (epoch uint64, body []byte, err error) {
	if len(b) < snapshotHeader || string(b[:len(snapshotMagic)]) != snapshotMagic {
		return 0, nil, errSnapshot
	}
	return binary.LittleEndian.Uint64(b[len(snapshotMagic):]), b[snapshotHeader:], nil
}

// snapshotFile is the file of a stream.
func snapshotFile(dir string, key wire.Key) string {
	return filepath.Join(dir, fmt.Sprintf("%016x-%d.snap", key.Endpoint, key.Rank))
}

// readSnapshot reads a file; nil without an error if there is none.
func readSnapshot(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err == nil && info.Size() > maxSnapshotSize {
		err = fmt.Errorf("%d bytes, limit %d", info.Size(), maxSnapshotSize)
	}
	if err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	return b, nil
}

// writeSnapshot replaces a file as a whole: a reader sees the old or the new one.
func writeSnapshot(path string, b []byte) error {
	tmp := path + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	return nil
}

// snapshotLoop saves the streams now and then, and at the end.
func (u *unit) snapshotLoop(ctx context.Context) {
	if u.cfg.StateDir == "" {
		return
	}
	tick := time.NewTicker(snapshotEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			u.save(time.Now())
			return
		case now := <-tick.C:
			u.save(now)
		}
	}
}

func (u *unit) save(now time.Time) {
	for _, rank := range u.ranks() {
		u.mu.Lock()
		s := u.streams[rank]
		b := s.snapshot(nil, now)
		path := snapshotFile(u.cfg.StateDir, s.cfg.key)
		u.mu.Unlock()
		if err := writeSnapshot(path, b); err != nil {
			u.log.Warn("snapshot not saved, a restarted agent will know less", slog.Any(keyErr, err))
			return
		}
	}
}

func (u *unit) ranks() []uint16 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Sorted(maps.Keys(u.streams))
}

// load resumes a new stream from its snapshot; the caller holds mu.
func (u *unit) load(s *stream, now time.Time) {
	if u.cfg.StateDir == "" {
		return
	}
	path := snapshotFile(u.cfg.StateDir, s.cfg.key)
	b, err := readSnapshot(path)
	if err == nil && b == nil {
		return
	}
	if err == nil {
		err = s.resume(now, b)
	}
	if err != nil {
		u.log.Warn("snapshot not used", slog.String(keyPath, path), slog.Any(keyErr, err))
		return
	}
	u.log.Info("resumed from a snapshot", slog.Int(keyRank, int(s.cfg.key.Rank)), slog.Int(keyBlocks, s.set.Stats().Blocks))
}
