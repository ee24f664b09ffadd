package agent

import (
	"io"
	"log/slog"
)

// Log attribute keys of this package.
const (
	keyEngine   = "engine"
	keyRank     = "rank"
	keyErr      = "err"
	keyReason   = "reason"
	keyRemedy   = "remedy"
	keyEndpoint = "endpoint"
	keyReplay   = "replay"
	keyEpoch    = "epoch"
	keyBlocks   = "blocks"
	keyNode     = "node"
	keyPath     = "path"
	keyAddr     = "addr"
	keyVersion  = "version"
	keyModel    = "model"
	keyState    = "state"
	keyPool     = "pool"
)

// NewLogger returns a logger with the configured level and format.
func (c Config) NewLogger(w io.Writer) *slog.Logger {
	level, err := c.level()
	if err != nil { // Validate names it
		level = slog.LevelInfo
	}
	opts := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}
