//go:build netns

package lab

import "errors"

// What is mounted is mounted in the daemon's namespace, and goes with it. Files are
// written from outside, below what is mounted there.

// inside returns a way to mount by commands, as shell does.
func inside(script string) func(*site, string) error {
	return shell("nsenter --target $pid --mount sh -ec 'cd $work; " + script + "'")
}

// mountWays are those that mount something over one file.
var mountWays = []way{
	{"mounted over", nil, inside(`umount $f 2>/dev/null || true; mount --bind $new $f`)},
	{"mounted on top of what is mounted", nil, inside(`mount --bind $new $f`)},
	{"mounted from another file system", nil, inside(`mkdir t; mount -t tmpfs none t; cp $new t/new; mount --bind t/new $f`)},
	{"mount --move", nil, inside(`: >spot; mount --bind $new spot; mount --move spot $f`)},
	{"unmounted", nil, shell(`cp $f old; nsenter --target $pid --mount mount --bind $work/old $f; cat $new >$f; nsenter --target $pid --mount umount $f`)},
	{"written where it is mounted from", nil, (*site).writeSource},
	{"mounted again read-only", nil, inside(`mount --bind $new $f; mount -o remount,bind,ro $f`)},
}

// directoryMountWays are those that mount something over the directory.
var directoryMountWays = []way{
	{"directory mounted over", (*site).slowly, filled(inside(`umount $dir 2>/dev/null || true; mount --bind $aside/$n $dir`))},
	{"file system mounted over the directory", (*site).slowly, filled(inside(`mount -t tmpfs none $dir; cp -a $aside/$n/. $dir`))},
	{"mount --move of the directory", (*site).slowly, filled(inside(`mkdir $aside/spot-$n; mount --bind $aside/$n $aside/spot-$n; mount --move $aside/spot-$n $dir`))},
	{"overlay mounted over the directory", (*site).slowly, filled(inside(`mkdir o; mount -t tmpfs none o; mkdir o/u o/w
		mount -t overlay none -o lowerdir=$aside/$n,upperdir=$work/o/u,workdir=$work/o/w $dir`))},
	{"written in an overlay", (*site).slowly, inside(`if test $n = 1; then
			mkdir o; mount -t tmpfs none o; mkdir o/u o/w
			mount -t overlay none -o lowerdir=$dir,upperdir=$work/o/u,workdir=$work/o/w $dir
		fi; cat $new >$f`)},
	{"directory unmounted", (*site).slowly, shell(`cp -a $dir old; nsenter --target $pid --mount mount --bind $work/old $dir; sleep 0.7
		cat $new >$f; nsenter --target $pid --mount umount $dir`)},
	{"disk unmounted and mounted again", (*site).slowly, filled(inside(`if test $n = 1; then mount -t tmpfs none $dir; else umount $dir; fi
		sleep 0.7; mount --bind $aside/$n $dir`))},
}

// slowly is for ways that take long, each time.
func (s *site) slowly(text string) error {
	s.runs = slowWayRuns
	return s.plain(text)
}

// filled makes a directory aside with all files, for a way that mounts it.
func filled(mount func(*site, string) error) func(*site, string) error {
	return func(s *site, text string) error { return errors.Join(s.fill(s.fresh(), text), mount(s, text)) }
}

// writeSource writes the file that is mounted, where it comes from.
func (s *site) writeSource(text string) error {
	if s.run == 1 {
		return errors.Join(write(s.target(), text), inside("mount --bind $aside/$base $f")(s, text))
	}
	return write(s.target(), text)
}
