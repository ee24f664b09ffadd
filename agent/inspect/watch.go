package inspect

import (
	"context"
	"time"

	"github.com/grapevine-llm/grapevine/agent/zmqsub"
)

// WatchOptions say what to do beside showing events.
type WatchOptions struct {
	// Record, if set, gets each message in the order it is applied.
	Record *Recorder
	// UntilReplayed ends the run when what the engine still had was replayed.
	UntilReplayed bool
	// After is called when a message was dealt with.
	After func(seq uint64) error
}

// Watch follows an engine until ctx ends, which is no error. It runs sub.
func Watch(ctx context.Context, sub *zmqsub.Subscriber, x *Inspector, o WatchOptions) error {
	ctx, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- sub.Run(ctx) }()
	err := follow(sub.Events(), sub.Replay, x, o)
	stop()
	for range sub.Events() { // Run may wait for a reader
	}
	if runErr := <-done; err == nil {
		err = runErr
	}
	return err
}

// follow passes events to x and its wishes for a replay to ask.
func follow(events <-chan zmqsub.Event, ask func(from uint64), x *Inspector, o WatchOptions) error {
	for ev := range events {
		now := ev.Message.At
		if now.IsZero() {
			now = time.Now()
		}
		m := Message{Line: -1, Topic: ev.Message.Topic, Seq: ev.Message.Seq, Payload: ev.Message.Payload}
		var want Ask
		var err error
		switch ev.Kind {
		case zmqsub.Connected:
			want, err = x.Connected(now)
		case zmqsub.Live:
			want, err = x.Live(now, m)
		case zmqsub.Replayed:
			want, err = x.Replayed(now, m)
		case zmqsub.ReplayDone:
			want, err = x.ReplayEnd(now, ev.Replay.Complete)
		}
		if err == nil && (ev.Kind == zmqsub.Live || ev.Kind == zmqsub.Replayed) {
			if o.Record != nil {
				err = o.Record.Record(now, m)
			}
			if err == nil && o.After != nil {
				err = o.After(m.Seq)
			}
		}
		if err != nil {
			return err
		}
		if want.Wanted {
			ask(want.From)
		} else if o.UntilReplayed && ev.Kind == zmqsub.ReplayDone {
			return nil
		}
	}
	return nil
}
