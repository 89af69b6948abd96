package restapi

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// socketGroup is the group whose members may use the API in addition to root, if it exists.
const socketGroup = "cilium"

// lookInterval is how often it is looked whether a socket is where clients find it.
const lookInterval = 5 * time.Second

// Listen opens a unix socket of the API, at the path that an option names: mode 0660, owned by
// root and, if there is one, the group of those who may use it. A socket that a dead agent left is
// replaced; one that answers is not. One that another program removes is opened again; report, if
// not nil, is called with why it cannot be, and with nil when it could.
func Listen(path, option string, log *slog.Logger, report func(error)) (net.Listener, error) {
	if report == nil {
		report = func(error) {}
	}
	l := &checkedListener{path: path, option: option, log: log, report: report}
	if err := l.open(); err != nil {
		return nil, err
	}
	return l, nil
}

// open is called with mu held, or before others know of l.
func (l *checkedListener) open() error {
	path := l.path
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("create the directory of the API socket: %w", err)
	}
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		conn.Close()
		return fmt.Errorf("another agent answers at %s; stop it first or choose another %s", path, l.option)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the socket of an earlier agent: %w", err)
	}
	// The socket must never be open to others, not even between its creation and a chmod.
	opened, err := listenWithMask(path)
	if err != nil {
		return fmt.Errorf("open the API socket: %w", err)
	}
	gid := -1
	if g, err := user.LookupGroup(socketGroup); err == nil {
		if gid, err = strconv.Atoi(g.Gid); err == nil {
			err = os.Chown(path, 0, gid)
		}
		if err != nil {
			opened.Close()
			return fmt.Errorf("give the API socket to group %s: %w", socketGroup, err)
		}
	}
	err = os.Chmod(path, 0o660)
	var file fs.FileInfo
	if err == nil {
		file, err = os.Lstat(path)
	}
	if err != nil {
		opened.Close()
		return fmt.Errorf("set the mode of the API socket: %w", err)
	}
	if l.at != nil {
		l.at.Close()
	}
	l.at, l.file, l.gid = opened, file, gid
	return nil
}

// listenWithMask makes the socket accessible to root only from the start: it is created in a
// directory of its own, and then moved.
func listenWithMask(path string) (*net.UnixListener, error) {
	dir, err := os.MkdirTemp(filepath.Dir(path), ".s")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	tmp := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: tmp, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // it will have moved
	err = os.Chmod(tmp, 0o600)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// checkedListener accepts only root and members of the socket's group, whatever has become of the
// mode of the file.
type checkedListener struct {
	path, option string
	log          *slog.Logger
	report       func(error)

	mu     sync.Mutex
	at     *net.UnixListener
	file   fs.FileInfo // the socket, as it was opened
	gid    int
	closed bool
	lost   string // why it cannot be opened again, as it was logged
}

// Accept waits for the next connection of a user who may use the API.
func (l *checkedListener) Accept() (net.Conn, error) {
	for {
		l.mu.Lock()
		at, gid := l.at, l.gid
		l.mu.Unlock()
		if err := at.SetDeadline(time.Now().Add(lookInterval)); err != nil {
			return nil, err
		}
		conn, err := at.AcceptUnix()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			l.look()
			continue
		}
		if err != nil {
			return nil, err
		}
		cred, err := peerOf(conn)
		if err == nil && (cred.Uid == uint32(os.Geteuid()) || cred.Uid == 0 || (gid >= 0 && inGroup(cred, gid))) {
			return conn, nil
		}
		l.log.Warn("refused a connection to the API", "credentials", cred, "error", err)
		conn.Close()
	}
}

// look opens the socket again if it is not where clients look for it: another program, such as one
// that cleans up after another network plugin, may have removed it with its directory.
func (l *checkedListener) look() {
	l.mu.Lock()
	defer l.mu.Unlock()
	there, err := os.Lstat(l.path)
	if l.closed || err == nil && os.SameFile(there, l.file) {
		return
	}
	if err := l.open(); err != nil {
		err = fmt.Errorf("the socket %s was removed by another program and cannot be opened again, so that no client, and no new pod, finds the agent; if its directory is gone, start the agent again: %w", l.path, err)
		if l.lost != err.Error() {
			l.log.Error("no client finds the agent", "error", err)
		}
		l.lost = err.Error()
		l.report(err)
		return
	}
	l.log.Warn("another program has removed the agent's socket; it is open again", "path", l.path)
	l.lost = ""
	l.report(nil)
}

// Close ends Accept. The socket stays, for its owner to remove.
func (l *checkedListener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	return l.at.Close()
}

// Addr returns the path of the socket.
func (l *checkedListener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

func peerOf(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil {
		return nil, err
	}
	return cred, cerr
}

// inGroup reports whether the peer's primary group or one of its user's groups is gid.
func inGroup(cred *unix.Ucred, gid int) bool {
	if cred.Gid == uint32(gid) {
		return true
	}
	u, err := user.LookupId(strconv.FormatUint(uint64(cred.Uid), 10))
	if err != nil {
		return false
	}
	groups, err := u.GroupIds()
	if err != nil {
		return false
	}
	return slices.Contains(groups, strconv.Itoa(gid))
}
