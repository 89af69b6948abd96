package flows

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"time"

	"github.com/hawser-net/hawser/test/cluster/lab"
)

// Token returns a random number, by which one probe's packets differ from another's.
func Token() uint32 { return rand.Uint32() }

// Ask sends one message by "tcp" or "udp" and waits for the answer of the server with this number;
// a datagram is sent again until then. Without an answer it returns os.ErrDeadlineExceeded.
func Ask(from *lab.Namespace, network string, to netip.AddrPort, server uint32, timeout time.Duration) error {
	who, err := Who(from, network, to, timeout)
	if err == nil && who != server {
		err = fmt.Errorf("server %d answers, not %d", who, server)
	}
	return err
}

// Who is Ask of any server. It returns the number of the one that answered.
func Who(from *lab.Namespace, network string, to netip.AddrPort, timeout time.Duration) (server uint32, err error) {
	deadline := time.Now().Add(timeout)
	conn, err := from.Dial(network, to, timeout)
	if err != nil {
		return 0, err
	}
	defer lab.Reset(conn)
	// No flow has the number 0.
	m := message{0, rand.Uint64()}
	buf := make([]byte, 256)
	for wait := 100 * time.Millisecond; ; wait *= 2 {
		if _, err := conn.Write(m.bytes()); err != nil {
			return 0, err
		}
		until := deadline
		if network == "udp" && time.Now().Add(wait).Before(deadline) {
			until = time.Now().Add(wait)
		}
		_ = conn.SetReadDeadline(until)
		n, err := conn.Read(buf)
		switch {
		case err == nil && n == answerLn:
			if got, ok := parse(buf[:n]); !ok || got != m {
				return 0, errors.New("the answer is not to this question")
			}
			return binary.BigEndian.Uint32(buf[messageLn:]), nil
		case err == nil:
			return 0, fmt.Errorf("an answer of %d bytes", n)
		case !errors.Is(err, os.ErrDeadlineExceeded), !time.Now().Before(deadline):
			return 0, err
		}
	}
}
