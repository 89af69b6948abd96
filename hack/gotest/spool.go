package main

import (
	"io"
	"sync"
)

// spool is a writer that never waits for the reader of the output. A blocked writer would hold up
// the tests of all packages: their pipes would fill, and a test that writes to its log would wait,
// whatever its deadlines. All of it is in memory anyway.
type spool struct {
	to io.Writer

	mu   sync.Mutex
	text []byte // that is to be written
	// busy is set while a goroutine writes; idle is signalled when none does any more.
	busy bool
	idle *sync.Cond
}

func newSpool(to io.Writer) *spool {
	s := &spool{to: to}
	s.idle = sync.NewCond(&s.mu)
	return s
}

// Write takes a copy of text.
func (s *spool) Write(text []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = append(s.text, text...)
	if !s.busy {
		s.busy = true
		go s.drain()
	}
	return len(text), nil
}

// drain writes until nothing is left. Output that cannot be written is lost.
func (s *spool) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.text) > 0 {
		text := s.text
		s.text = nil
		s.mu.Unlock()
		_, _ = s.to.Write(text)
		s.mu.Lock()
	}
	s.busy = false
	s.idle.Broadcast()
}

// flush waits until all is written.
func (s *spool) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.busy {
		s.idle.Wait()
	}
}
