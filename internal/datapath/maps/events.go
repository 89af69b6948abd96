package maps

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
)

// lostEvery is how many events that wait are read at most before it is asked how many were lost.
const lostEvery = 64

// eventBuffers are the buffers of the programs, by the kind of event that is in each.
func (m *Maps) eventBuffers() map[datapath.EventType]*ebpf.Map {
	return map[datapath.EventType]*ebpf.Map{
		datapath.EventDrop: m.maps[kernelMapEventsDrop], datapath.EventVerdict: m.maps[kernelMapEventsVerdict], datapath.EventTrace: m.maps[kernelMapEventsTrace],
	}
}

// Events calls fn for every event that the programs write, until ctx is done; then it returns nil.
// The calls for one kind of event are in the order of the events and follow each other; those for
// different kinds may be at the same time. The event's Data is fn's to keep. Only one reader at a
// time gets all events: a buffer has one position. Which kinds are written is set by SetMonitor.
func (m *Maps) Events(ctx context.Context, fn func(datapath.Event)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	buffers := m.eventBuffers()
	ended := make(chan error, len(buffers))
	for kind, buffer := range buffers {
		go func() { ended <- m.readEvents(ctx, kind, buffer, fn) }()
	}
	var errs []error
	for range buffers {
		errs = append(errs, <-ended)
		cancel() // one without the others would be half of the truth
	}
	return errors.Join(errs...)
}

// readEvents calls fn for every event in one buffer, until ctx is done.
func (m *Maps) readEvents(ctx context.Context, kind datapath.EventType, buffer *ebpf.Map, fn func(datapath.Event)) error {
	reader, err := ringbuf.NewReader(buffer)
	if err != nil {
		return fmt.Errorf("events: open the buffer of kind %s: %w", kind, err)
	}
	defer reader.Close()
	// Flush wakes a reader that waits for an event; a deadline would wait for the reader's lock.
	stop := context.AfterFunc(ctx, func() { _ = reader.Flush() }) // it fails only if the reader is closed
	defer stop()

	lostBefore, err := m.EventsLost(kind)
	if err != nil {
		return err
	}
	clock := wallClock{read: clockOffset}
	var record ringbuf.Record
	for unasked := 0; ; {
		if err := reader.ReadInto(&record); err != nil {
			if errors.Is(err, ringbuf.ErrFlushed) {
				return nil
			}
			return fmt.Errorf("events: read kind %s: %w", kind, err)
		}
		event, err := decodeEvent(record.RawSample, &clock)
		if err != nil {
			return fmt.Errorf("events: %w", err)
		}
		// To ask costs more than to read an event; where many wait, some know it for all.
		if unasked++; record.Remaining == 0 || unasked == lostEvery {
			unasked = 0
			lost, err := m.EventsLost(kind)
			if err != nil {
				return err
			}
			event.Lost, lostBefore = lost-lostBefore, lost
		}
		fn(event)
	}
}

// clockEvery is after how long, by the kernel's clock, the wall clock is read again. It may be set
// while events come, and the two do not run alike, least of all while the machine sleeps.
const clockEvery = time.Second

// wallClock makes wall-clock times of the kernel's monotonic ones.
type wallClock struct {
	read func() (zero time.Time, err error)
	zero time.Time     // the time of monotonic zero
	good time.Duration // until then; 0 before it was read
}

// at returns the time of an event.
func (c *wallClock) at(mono time.Duration) (time.Time, error) {
	if mono >= c.good {
		zero, err := c.read()
		if err != nil {
			return time.Time{}, err
		}
		c.zero, c.good = zero, mono+clockEvery
	}
	return c.zero.Add(mono), nil
}

// clockOffset returns the wall-clock time of monotonic zero.
func clockOffset() (time.Time, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return time.Time{}, err
	}
	return time.Now().Round(0).Add(-time.Duration(ts.Nano())), nil
}

func decodeEvent(raw []byte, clock *wallClock) (datapath.Event, error) {
	var k kernelEvent
	if _, err := binary.Decode(raw, binary.NativeEndian, &k); err != nil {
		return datapath.Event{}, fmt.Errorf("a record of %d bytes is no event: %w", len(raw), err)
	}
	if int(k.Captured) > len(k.Packet) {
		return datapath.Event{}, fmt.Errorf("an event claims %d bytes of packet", k.Captured)
	}
	at, err := clock.at(time.Duration(k.Time))
	if err != nil {
		return datapath.Event{}, fmt.Errorf("read the clocks: %w", err)
	}
	data := bytes.Clone(k.Packet[:k.Captured])
	return datapath.Event{
		Time:        at,
		Type:        datapath.EventType(k.Type),
		Program:     datapath.Program(k.Program),
		Direction:   datapath.Direction(k.Direction),
		Reason:      datapath.DropReason(k.Reason),
		Outcome:     datapath.Outcome(k.Outcome),
		CTState:     datapath.CTState(k.CtState),
		Endpoint:    k.Endpoint,
		SrcIdentity: k.SrcIdentity,
		DstIdentity: k.DstIdentity,
		IfIndex:     int(k.Ifindex),
		Length:      int(k.Length),
		FlowUpdate:  k.FlowUpdate != 0,
		Match:       datapath.PolicyMatch(k.Match),
		Packet:      datapath.ParsePacket(data),
		Data:        data,
	}, nil
}
