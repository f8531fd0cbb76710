# What calls of several users leave of a file's privileges, a line each: the same on every file system.
import mmap,os,stat,struct,sys
base=sys.argv[1]; os.umask(0)
CAP='security.capability'
VALUE=struct.pack('<IIIII',0x02000001,1<<10,0,0,0)
count=0
def make(mode,kind='file',cap=False,uid=0,gid=0):
    global count; count+=1; path=f'{base}/n{count}'
    if kind=='file': open(path,'wb').write(b'x'*4096)
    elif kind=='dir': os.mkdir(path)
    elif kind=='fifo': os.mkfifo(path)
    elif kind=='socket': os.mknod(path,stat.S_IFSOCK|0o600)
    else: os.mknod(path,stat.S_IFCHR|0o600,os.makedev(1,3))
    os.chown(path,uid,gid); os.chmod(path,mode)
    if cap: os.setxattr(path,CAP,VALUE)
    return path
def run(what,uid,groups,path,act):
    read,write=os.pipe()
    if os.fork()==0:
        said='ok'
        try:
            if uid: os.setgroups(groups[1:]); os.setgid(groups[0]); os.setuid(uid)
            act(path)
        except OSError as e: said=os.strerror(e.errno)
        os.write(write,said.encode()); os._exit(0)
    os.wait(); said=os.read(read,100).decode(); os.close(read); os.close(write)
    try: os.getxattr(path,CAP); cap='cap'
    except OSError: cap='-'
    print(f'{what}: {said} {os.lstat(path).st_mode:o} {cap}')
def opened(flags,act):
    def do(path):
        fd=os.open(path,flags); act(fd); os.close(fd)
    return do
def direct(fd):
    page=mmap.mmap(-1,4096); page[:]=b'y'*4096; os.write(fd,page)
nothing=lambda path: os.chown(path,-1,-1)
ME=[1000]
for mode in (0o644,0o4755,0o2755,0o2745,0o6755):
    for cap in (False,True):
        for who,uid in (('stranger',1000),('root',0)):
            run(f'chown to nothing by {who}, {mode:o} {cap}',uid,ME,make(mode,cap=cap),nothing)
    run(f'chown to nothing by owner, {mode:o}',1000,ME,make(mode,uid=1000,gid=1000),nothing)
    for kind in ('file','dir','fifo','socket','device'):
        run(f'chown {kind} by root, {mode:o}',0,ME,make(mode,kind),lambda p: os.chown(p,5,5))
        run(f'chown group of {kind} by owner, {mode:o}',1000,[1000,1001],make(mode,kind,uid=1000,gid=1000),lambda p: os.chown(p,-1,1001))
WAYS=(('write',os.O_WRONLY,lambda fd: os.write(fd,b'y')),('write and read',os.O_RDWR,lambda fd: os.write(fd,b'y')),
 ('append',os.O_WRONLY|os.O_APPEND,lambda fd: os.write(fd,b'y')),
 ('direct',os.O_WRONLY|os.O_DIRECT,direct),('direct and read',os.O_RDWR|os.O_DIRECT,direct),
 ('cut',os.O_WRONLY,lambda fd: os.ftruncate(fd,10)),('allocate',os.O_WRONLY,lambda fd: os.posix_fallocate(fd,0,9000)),
 ('empty',os.O_WRONLY|os.O_TRUNC,lambda fd: None))
for mode in (0o4777,0o2777,0o2767,0o6777,0o6767):
    for name,flags,act in WAYS:
        for who,uid,groups,gid in (('stranger',1000,ME,0),('member',1000,[1000,1001],1001),('own group',1000,ME,1000),('root',0,ME,0)):
            for cap in (False,True):
                run(f'{name} by {who}, {mode:o} {cap}',uid,groups,make(mode,cap=cap,gid=gid),opened(flags,act))
