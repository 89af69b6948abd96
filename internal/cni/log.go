package cni

import (
	"log/slog"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
)

// maxLogBytes is the size from which on the log file is moved to a second one of the same name with
// ".1" behind it.
const maxLogBytes = 10 << 20

// logger writes to the file of the configuration. Standard output belongs to the result; a plugin
// that can't log works all the same. A nil *slog.Logger means that no file is wanted.
type logger struct {
	l *slog.Logger
	f *os.File
}

func newLogger(c netConf, args *skel.CmdArgs) *logger {
	if c.LogFile == "" {
		return &logger{}
	}
	if st, err := os.Lstat(c.LogFile); err == nil && st.Size() > maxLogBytes {
		_ = os.Rename(c.LogFile, c.LogFile+".1")
	}
	f, err := os.OpenFile(c.LogFile, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return &logger{}
	}
	level := slog.LevelInfo
	if c.Debug {
		level = slog.LevelDebug
	}
	l := slog.New(slog.NewJSONHandler(f, &slog.HandlerOptions{Level: level}))
	return &logger{f: f, l: l.With("container-id", args.ContainerID, "ifname", args.IfName, "netns", args.Netns)}
}

func (l *logger) close() {
	if l.f != nil {
		l.f.Close()
	}
}

func (l *logger) debug(msg string, attrs ...any) {
	if l.l != nil {
		l.l.Debug(msg, attrs...)
	}
}

func (l *logger) info(msg string, started time.Time, attrs ...any) {
	if l.l != nil {
		l.l.Info(msg, append(attrs, "duration", time.Since(started))...)
	}
}

func (l *logger) warn(msg string, err error) {
	if l.l != nil {
		l.l.Warn(msg, "error", err)
	}
}

func (l *logger) error(msg string, err error, started time.Time) {
	if l.l != nil {
		l.l.Error(msg, "error", err, "duration", time.Since(started))
	}
}
