// Command gateway is Grapevine's OpenAI-compatible reverse proxy: it sends each request to
// the pod that holds most of its prompt's KV cache.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/grapevine-llm/grapevine/cmd/internal/gatewaycmd"
)

// version is set by the linker (-X main.version=...).
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := gatewaycmd.Main(ctx, os.Args[1:], version, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
