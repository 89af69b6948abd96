package cni

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	cnitypes "github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/api/rest/client"
	"github.com/hawser-net/hawser/internal/deletequeue"
	"github.com/hawser-net/hawser/pkg/retry"
)

// lockPoll is how often a lock that is taken is tried again.
const lockPoll = 20 * time.Millisecond

// lockAttachment keeps other processes from changing an attachment until release is called, or this
// process ends. If one does so already it waits for that long at most; the runtime is then to come
// again. An IPAM plugin gives and frees addresses by the attachment: of two commands at once the
// one that fails would free what the other has. The specification forbids them, and runtimes send
// them after a timeout of theirs.
func lockAttachment(ctx context.Context, agent *client.Client, a attachment, wait time.Duration) (release func(), err error) {
	path := deletequeue.AttachmentLock(queueDir(agent))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fail(cnitypes.ErrTryAgainLater, "the attachment cannot be locked", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fail(cnitypes.ErrTryAgainLater, "the attachment cannot be locked", err)
	}
	// The lock is one byte of the file, which stays empty, however many attachments there are.
	sum := sha256.Sum256([]byte(a.ContainerID + ":" + a.IfName))
	at := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(binary.BigEndian.Uint64(sum[:]) >> 2), Len: 1}
	for deadline := time.Now().Add(wait); ; {
		l := at
		err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &l)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fail(cnitypes.ErrTryAgainLater, "the attachment cannot be locked", fmt.Errorf("%s: %w", path, err))
		}
		if time.Now().After(deadline) || !retry.Sleep(ctx, lockPoll) {
			f.Close()
			return nil, fail(cnitypes.ErrTryAgainLater, "another command for this attachment is under way",
				fmt.Errorf("container %s, interface %s: try again when it has ended", a.ContainerID, a.IfName))
		}
	}
}
