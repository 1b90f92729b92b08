/* The job starter: what a batch system runs in a job's place. It takes the job to the door of the
   host's agent, waits there until the job has ended in its machine, and ends as the job did. */
#ifndef ENCAMP_STARTER_H
#define ENCAMP_STARTER_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    FAILED_CALL = 64,   /* called in a way that makes no sense */
    FAILED_DATA = 65,   /* a job too large to be handed over */
    FAILED_SCRIPT = 66, /* a script that cannot be read */
    FAILED_LATER = 75,  /* no fault of the job's */
};

enum {
    GRIDENGINE_AGAIN = 99,  /* what Grid Engine takes for: queue it again */
    GRIDENGINE_ERROR = 100, /* and: hold it, in the error state */
};

enum {
    SCRIPT_LIMIT = 4 << 20,
    VARIABLES_LIMIT = 2 << 20,
    FRAME_LIMIT = 8 << 20,
    FIELDS_LIMIT = 1 << 17,
};

enum system { SLURM, GRIDENGINE, PBS, ANOTHER };

/* A job, as the batch system wanted to start it. */
struct job {
    enum system system;
    char system_name[64];
    const char *environment; /* may be empty: the site decides */
    char **words;            /* what to run, or with a script: its arguments */
    const char *script;      /* its path, or NULL */
    char *content;           /* without the line that called us */
    size_t content_length;
    char *runner[4];         /* with a script: what to start it with; none: its own first line */
    bool skipped;            /* a line was left out of the content */
    bool spooled;            /* the script is the copy that the batch system made for this job */
    bool any_shell;          /* the first word is a shell where /bin/sh does as well */
    bool login;              /* plainly started, its shell is told to be a login shell */
    bool comes_back;         /* the batch system can queue it again */
    bool part;               /* it is a task that a job on several hosts has begun */
    pid_t over;              /* nothing is to be run: this was the job's starter; 0: it is us */
};

/* called.c */
void called(struct job *job, int argc, char **argv);
const char *variable(const char *name); /* never NULL */
bool good_name(const char *name);

/* gridengine.c */
void gridengine_called(struct job *job, char **words);
bool gridengine_has_killed(void); /* Grid Engine itself, whatever for */
bool gridengine_has_tasks(void); /* of the script's, on this host */
void gridengine_id(char *text, size_t room); /* the job's, by its variables */

/* script.c */
void script_read(struct job *job, const char *path, const char *our_line);

/* shepherd.c: the batch system's own process that has begun the job, and waits for it */
int shepherd_open(enum system system); /* can be read when it is gone; -1: it is not our parent */

/* request.c: the frame that asks for the job to be run; made once, marked before each sending */
struct request {
    uint8_t *bytes;
    size_t length;
    size_t fields;
    bool early_alone; /* signals from before the job began are for its first process */
    int shepherd;     /* can be read when who has begun the job is gone; -1: nobody looks */
    bool part;        /* of the job, on one of several hosts */
};
void request_make(struct request *request, const struct job *job);
void request_mark(struct request *request, unsigned tries, bool lost);

/* files.c */
void have_streams(void); /* each of them leads somewhere, if only nowhere */
void close_from(unsigned first);

/* signals.c */
void signals_take(void);
void signals_give_back(void); /* as they were before signals_take */
int signals_descriptor(void);
int signals_next(void); /* 0: none is waiting */
int signals_open(void); /* another descriptor for them, or -1 */
bool signals_deadly(int number); /* to a job that has set nothing against it */
void signals_keep(int number); /* until the job has begun; a deadly one kills us */
bool signals_kept(void); /* is there any? */
void signals_release(bool alone); /* those that were kept are owed from now on */
void signals_owe(int number, bool alone); /* the job is to have it, or its first process alone */
int signals_owed(bool *alone); /* 0: none */
void signals_sent(int number, bool alone);
void signals_forget(void); /* what is owed or kept is somebody else's to tell */
_Noreturn void die_of(int number);
void pause_for(uint32_t milliseconds); /* signals are kept meanwhile */
enum { STEP_FIRST_MS = 100, STEP_LAST_MS = 2000 };
uint32_t next_step(uint32_t milliseconds); /* how long to pause the next time */

/* witness.c: tells a signal to all of the job from one to its first process alone */
void witness_start(void);
void witness_end(void);
void witness_forget(void); /* it is somebody else's */
int witness_descriptor(void); /* -1: there is none, and every signal is one to all */
int witness_deadline(void);   /* milliseconds until it must be listened to; -1: none */
void witness_listen(void);
void witness_judge(int number); /* owed as soon as it is known to whom */

/* door.c */
int door_open(uint32_t patience_ms, const char *note); /* waits for it; -1: nobody came */

/* talk.c: returns if the job did not end there and then */
struct answer {
    enum { LOST, SILENT, AGAIN, PLAIN } kind;
    uint32_t milliseconds; /* AGAIN: after so many */
    enum { TRIED, CROWDED, MISTAKEN } why; /* AGAIN: only what was tried counts as a try */
};
struct answer talk(int door, const struct request *request, bool *begun);

/* guard.c: if we are killed, nobody learns it before it is decided what becomes of the job */
void guard_start(const struct job *job, char **argv);
void guard_renew(void); /* if somebody has killed it */
void guard_tell_ended(void); /* the job's command has: it is not to come back */
void guard_end(void); /* from now on our end is what anybody may take it for */

/* calls.c: commands that the job calls from its machine */
enum { CALL_FILES = 4, CALL_END = 6 }; /* its streams and its words; number, kind and value */
enum { CALL_EXITED, CALL_KILLED, CALL_NOT_BEGUN };
bool calls_begin(uint32_t number, const int files[CALL_FILES]); /* false: there are too many */
void calls_signal(uint32_t number, int signal);
void calls_reap(void);
bool calls_owed(uint8_t end[CALL_END]); /* the end of one that nobody was told of; false: none */
void calls_told(void);
void calls_end(void); /* nothing of them is left */
void calls_forget(void); /* they are somebody else's */
bool calls_are_tasks(void); /* of the job: they may be */

/* plain.c */
_Noreturn void run_plainly(struct job *job);

/* returning.c */
_Noreturn void give_back(const struct job *job, bool begun, const char *why);
_Noreturn void leave_given_back(int code, bool wait);
bool job_was_ended(const struct job *job); /* by its batch system, not by somebody else */
void ask_for_it_back(const struct job *job); /* after its starter's end, of the batch system */

/* say.c: all on stderr, as `encamp: ...` */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
void say_bytes(const uint8_t *text, size_t length);
void say_news(const uint8_t *text, size_t length); /* unless it was said just before */
void say_once(const uint8_t *text, size_t length); /* unless it is among the last that were said */
_Noreturn void fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

uint64_t now_ms(void);

#endif
