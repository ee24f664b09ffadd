package extproc

import (
	"log/slog"
	"runtime/debug"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// contain makes a panic in a stream, or in what is done for it, the end of that alone, as net/http does for its handlers: gRPC lets it end the
// gateway. To be deferred.
func (s *Server) contain(err *error) {
	if v := recover(); v != nil {
		s.metrics.panics.Inc()
		s.log.Error("fault in the endpoint picker, please report it", slog.Any(keyError, v), slog.String(keyStack, string(debug.Stack())))
		*err = status.Error(codes.Internal, "a fault in the endpoint picker")
	}
}
